"""A schedule in words: headline, baselines, proof. Shared by optimize and report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..data.units import counted

if TYPE_CHECKING:
    from ..data.schedule import Schedule

__all__ = ["baseline_table", "headline", "proof_line"]

_LEAST_IN_J_MJ = 100.0  # a baseline of less is told in mJ, and all that stands beside it


def headline(schedule: Schedule) -> Iterator[str]:
    """What it is for, and what it promises."""
    from ..charts._style import describe, stamp

    what = describe(schedule.workload, schedule.gpu)
    yield (
        f"{stamp(what, schedule.simulated, schedule.provenance)}: "
        f"{counted(schedule.trace['kernels'], 'kernel')}, "
        f"{counted(len(schedule.segments), 'segment')}, "
        f"{counted(_switches(schedule), 'switch', 'switches')} a step"
    )
    cost, base = schedule.predicted, schedule.baseline
    in_joules = base.energy_mj >= _LEAST_IN_J_MJ
    yield (
        f"energy {_energy(cost.energy_mj, in_joules)} against "
        f"{_energy(base.energy_mj, in_joules)} at "
        f"{schedule.baseline_pair}: saving {cost.saving:.2%}"
    )
    confidence = schedule.budget["confidence"]
    limit = f"budget {schedule.budget['max_slowdown']:.2%}"
    if confidence is not None:
        limit += f" at {confidence:.0%} confidence"
    yield (
        f"time {cost.time_ns / 1e6:.4f} ms against {base.time_ns / 1e6:.4f} ms: "
        f"slowdown {cost.slowdown:+.3%} ({limit})"
    )
    noise = schedule.extra.get("noise")
    if noise is not None and cost.saving_interval and cost.slowdown_interval:
        # One pair a phase is chosen, if at all, on the cells as measured: so few choices flatter
        # little.
        which = "on cells it was not chosen from" if noise["tried"] else "given its cells' noise"
        yield (
            f"{which}: saving {noise['saving']:.2%} "
            f"{_interval(cost.saving_interval)}, slowdown {noise['slowdown']:+.3%} "
            f"{_interval(cost.slowdown_interval)}"
        )


def _switches(schedule: Schedule) -> int:
    count = len(schedule.segments) - 1
    if schedule.cyclic and schedule.segments[0].pair != schedule.segments[-1].pair:
        count += 1
    return count


def _energy(energy_mj: float, in_joules: bool) -> str:
    return f"{energy_mj / 1e3:.3f} J" if in_joules else f"{energy_mj:.4f} mJ"


def _interval(pair: tuple[float, float]) -> str:
    return f"[{pair[0]:.2%}, {pair[1]:.2%}]"


def proof_line(schedule: Schedule) -> str:
    """The bound, the gap, and how they came about."""
    proof, model = schedule.proof, schedule.switch_model
    took = "" if proof.seconds is None else f" in {proof.seconds:.2f} s"
    bound = _energy(proof.lower_bound_mj, schedule.baseline.energy_mj >= _LEAST_IN_J_MJ)
    return (
        f"proof: no schedule takes less than {bound}, gap {proof.gap:.1e} "
        f"({proof.status}, {proof.method}{took}); switches: {model['source']}, {model['semantic']}"
    )


def baseline_table(schedule: Schedule) -> Iterator[str]:
    """The baselines beside the schedule, aligned."""
    cost = schedule.predicted
    rows = [("schedule", cost.energy_mj, cost.saving, cost.slowdown, "", "")]
    rows += [
        (
            entry.name,
            entry.energy_mj,
            entry.saving,
            entry.slowdown,
            "" if entry.within_budget else "over the budget",
            ", ".join(entry.pairs),
        )
        for entry in schedule.baselines
    ]
    width = max(len(row[0]) for row in rows)
    in_joules = schedule.baseline.energy_mj >= _LEAST_IN_J_MJ
    yield f"{'':{width}}  {'energy':>14} {'saving':>8} {'slowdown':>9}"
    for name, energy_mj, saving, slowdown, over, pairs in rows:
        rest = "  ".join(text for text in (pairs, over) if text)
        energy = _energy(energy_mj, in_joules)
        line = f"{name:{width}}  {energy:>14} {saving:>8.2%} {slowdown:>+9.3%}  {rest}"
        yield line.rstrip()
