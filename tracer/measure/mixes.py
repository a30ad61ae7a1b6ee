"""Mixes: loops of operators run together so that the clock moves by itself, and what each costs.

Nobody has to set a clock for this. An operator alone runs at the clock its own power allows; with
half its time given to a hungrier one the power cap takes the clock down; with half given to a
waiting kernel (a spin: one thread) the clock goes up. Each mix is a fixed sequence of graph
replays, repeated for a second or two while the counter runs, with two spins of known length at its
end that sense the clock. `sensed_fit` takes the mixes apart into operators.

Left out: mixes over several streams, and power that depends on what ran just before (the sequence
is shuffled, and far shorter than the regulator's and the counter's steps).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gpu.protocol import Gpu
from .cuda import between_ns, mark, spin
from .op_loops import OpLoop
from .sensing import clock_from_pair_mhz
from .window import ReadingLog, Window

__all__ = ["MixPlan", "MixResult", "plan_mixes", "run_mix", "run_repeated"]

Floats = npt.NDArray[np.float64]

_SPIN_SHORT, _SPIN_LONG = 60_000, 260_000
_SLOT_CYCLES = 1_200_000
"""A waiting slot: about 0.7 ms, like a graph."""
_SLOTS = 20
_IN_FLIGHT = 3
_NOT_YET = 0.45
_LEAST_SEQUENCES = 4


@dataclass(frozen=True)
class MixPlan:
    """Replays of each loop in one sequence, and waiting slots.

    Attributes:
        kind: ``alone``, ``heavy``, ``light``, ``step-like`` or ``wait``.
        loops: loop number to replays.
        waits: waiting slots.
    """

    kind: str
    loops: dict[int, int]
    waits: int = 0


@dataclass(frozen=True)
class MixResult:
    """One mix, measured.

    Attributes:
        plan: what ran.
        calls: loop number to operator calls in one sequence.
        wait_cycles: cycles waited in one sequence, probes included.
        time_ns: mean time of one sequence.
        time_sd_ns: its standard deviation.
        sequences: sequences behind the means.
        sensed_mhz: median sensed clock; None where it could not be told.
        window: energy and readings.
    """

    plan: MixPlan
    calls: dict[int, int]
    wait_cycles: int
    time_ns: float
    time_sd_ns: float
    sequences: int
    sensed_mhz: float | None
    window: Window

    @property
    def energy_mj(self) -> float:
        """Energy of one sequence."""
        return self.window.power_w * self.time_ns * 1e-6

    def as_record(self) -> dict[str, Any]:
        """Plain values for a file."""
        record = asdict(self)
        record["window"]["method"] = self.window.method.value
        return record


def plan_mixes(
    replay_ns: Sequence[float | None],
    weights: Sequence[float],
    *,
    heavy: int,
    minor_share: float = 5e-4,
    step_like: int = 16,
    seed: int = 0,
) -> list[MixPlan]:
    """Mixes that tell the operators' energies apart at two or more clocks each.

    Args:
        replay_ns: (O,) time of one replay of each loop; None where it has no graph.
        weights: (O,) share of the step's time that each operator takes.
        heavy: the loop with the highest power among the large ones, used to take the clock down.
        minor_share: operators below this share are measured alone only.
        step_like: random mixes of all operators, by their weights.
        seed: of the random mixes.
    """
    rng = np.random.default_rng(seed)
    usable = [i for i, ns in enumerate(replay_ns) if ns]
    plans = [MixPlan("wait", {}, _SLOTS)]

    def slots(loop: int, share: float) -> int:
        ns = replay_ns[loop]
        assert ns
        return max(1, round(_SLOTS * 700_000 * share / ns))

    for loop in usable:
        plans.append(MixPlan("alone", {loop: slots(loop, 1.0)}))
        if weights[loop] < minor_share:
            continue
        if loop != heavy:
            plans.append(MixPlan("heavy", {loop: slots(loop, 0.5), heavy: slots(heavy, 0.5)}))
        plans.append(MixPlan("light", {loop: slots(loop, 0.5)}, _SLOTS // 2))
    plans += [
        MixPlan("light", {heavy: slots(heavy, 1 - share)}, round(_SLOTS * share))
        for share in (0.15, 0.3, 0.7)
    ]
    large = [i for i in usable if weights[i] >= minor_share]
    for _ in range(step_like):
        # Random subsets under random weights, so that no two operators always go together.
        chosen = [i for i in large if rng.random() < 0.6] or large
        drawn = np.array([weights[i] for i in chosen]) * rng.exponential(size=len(chosen))
        drawn /= drawn.sum()
        wait = float(rng.choice([0.0, 0.0, 0.2, 0.4]))
        counts = {
            i: round(2 * _SLOTS * 700_000 * s * (1 - wait) / float(replay_ns[i] or 1))
            for i, s in zip(chosen, drawn, strict=True)
        }
        if not any(counts.values()):  # replays longer than the whole sequence was to be
            counts = {chosen[int(drawn.argmax())]: 1}
        plans.append(
            MixPlan("step-like", {i: n for i, n in counts.items() if n}, round(2 * _SLOTS * wait))
        )
    # In random order, so that a drift of temperature is not taken for an operator's; but each
    # operator alone comes first, lest too little time leaves one out.
    order = rng.permutation(len(plans)).tolist()
    return [plans[i] for i in sorted(order, key=lambda i: plans[i].kind not in {"alone", "wait"})]


def _interleaved(plan: MixPlan) -> list[int]:
    """Loop numbers in an even order, -1 for a waiting slot."""
    items = [*plan.loops.items(), (-1, plan.waits)]
    places = [((k + 0.5) / n, loop) for loop, n in items for k in range(n)]
    return [loop for _, loop in sorted(places)]


def run_mix(
    plan: MixPlan,
    loops: Sequence[OpLoop],
    gpu: Gpu,
    log: ReadingLog,
    *,
    seconds: float = 1.0,
    settle_s: float = _NOT_YET,
) -> MixResult:
    """Run a mix for ``settle_s + seconds`` and cut out what was measured after it settled."""
    order = _interleaved(plan)
    graphs = [loops[i].graph if i >= 0 else None for i in order]

    def sequence() -> None:
        for graph in graphs:
            if graph is None:
                spin(_SLOT_CYCLES)
            else:
                graph.replay()

    times, clocks, window = run_repeated(
        sequence, gpu, log, seconds=seconds, settle_s=settle_s, probe=True
    )
    waits = plan.waits * _SLOT_CYCLES + _SPIN_SHORT + _SPIN_LONG
    good = clocks[np.isfinite(clocks)]
    return MixResult(
        plan=plan,
        calls={i: n * loops[i].calls for i, n in plan.loops.items()},
        wait_cycles=waits,
        time_ns=float(times.mean()),
        time_sd_ns=float(times.std(ddof=1)) if len(times) > 1 else 0.0,
        sequences=len(times),
        sensed_mhz=float(np.median(good)) if len(good) else None,
        window=window,
    )


def run_repeated(
    sequence: Callable[[], object],
    gpu: Gpu,
    log: ReadingLog,
    *,
    seconds: float,
    settle_s: float,
    probe: bool,
) -> tuple[Floats, Floats, Window]:
    """Run ``sequence`` again and again, a few ahead of the GPU, and measure the settled part.

    It goes on beyond ``seconds`` until a few have settled: a step may take longer than that.

    Returns:
        (N,) time of each sequence in ns; (N,) sensed clock, NaN without ``probe``; the window.
    """
    marks: list[tuple[int, tuple[Any, ...]]] = []  # (host time of completion, events)
    flying: deque[tuple[Any, ...]] = deque()
    begin_ns = gpu.now_ns()
    settled_ns = begin_ns + int(settle_s * 1e9)
    until_ns = settled_ns + int(seconds * 1e9)

    def land() -> None:
        events = flying.popleft()
        events[-1].synchronize()
        marks.append((gpu.now_ns(), events))

    def too_few() -> bool:
        return sum(at_ns >= settled_ns for at_ns, _ in marks) + len(flying) < _LEAST_SEQUENCES

    while gpu.now_ns() < until_ns or too_few():
        sequence()
        events = [mark()]
        if probe:
            spin(_SPIN_SHORT)
            events.append(mark())
            spin(_SPIN_LONG)
            events.append(mark())
        flying.append(tuple(events))
        if len(flying) > _IN_FLIGHT:
            land()
    while flying:
        land()
    # A landing may be seen late, the last one is not: the others are told back from it.
    last_ns = marks[-1][0]
    between = [between_ns(a[-1], b[-1]) for (_, a), (_, b) in pairwise(marks)]
    ended_ns = last_ns - np.append(np.cumsum(between[::-1])[::-1], 0.0)
    first = int(np.searchsorted(ended_ns, settled_ns))
    times = np.array(between[first:])
    clocks = np.full(len(times), np.nan)
    if probe:
        spins = [(between_ns(e[0], e[1]), between_ns(e[1], e[2])) for _, e in marks[first + 1 :]]
        short, long = (np.array(values) for values in zip(*spins, strict=True))
        clocks = clock_from_pair_mhz(short, long, _SPIN_SHORT, _SPIN_LONG)
    return times, clocks, log.window(int(ended_ns[first]), last_ns)
