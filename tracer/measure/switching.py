"""Measure what changing clocks costs: when a requested pair arrives, and what the call blocks.

Method, after the LATEST tool (Velicka, Vysocky, Riha, "Methodology for GPU frequency switching
latency measurement", 2025): run a known probe at the target pair first, so that its steady value
there is known; settle at the source pair; ask for the target while probes keep running; the switch
has arrived at the first probe that looks like the target's and is followed by others that do. The
time from the request to that probe is the latency. A probe that took far longer than at either
clock stood still: the excess is a stall. The driver call is timed apart. Many repeats; quantiles,
not means, since a tenth of the calls come late.

Left out: transitions from or to the governor, whose clock is not one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...data.errors import InputError, LockNotHeldError
from ...data.tables import LATENCY_PERCENTILES, SWITCHES
from ...data.units import ClockPair

__all__ = ["Observation", "SwitchBench", "Transition", "arrival", "measure_switches"]

Floats = npt.NDArray[np.float64]

_PROBE_NS = 2_000_000  # look for an arrival after so much probing

# An arrival must be followed by this many probes that agree, or it was scatter.
_AGREEING = 3


@dataclass(frozen=True)
class Observation:
    """Probes around one request.

    Attributes:
        request_ns: when the request was made.
        call_ns: how long the driver call blocked its caller.
        start_ns: {probe: (N,)} when each probe began, on the same clock.
        value: {probe: (N,)} what it showed: a duration in ns, or a clock in MHz. Positive.
    """

    request_ns: float
    call_ns: float
    start_ns: dict[str, Floats]
    value: dict[str, Floats]


class SwitchBench(Protocol):
    """Something that can ask for clocks and look at them at the same time."""

    provenance: str

    def settle(self, pair: ClockPair) -> None:
        """Ask for ``pair`` and wait until any transition is over."""
        ...

    def steady(self, probes: int) -> dict[str, Floats]:
        """Values of that many probes of each kind at the present clocks, each (N,)."""
        ...

    def request(self, pair: ClockPair) -> tuple[float, float]:
        """Ask for ``pair``; (when, how long the call blocks its caller), ns."""
        ...

    def probe(self, window_ns: int) -> dict[str, tuple[Floats, Floats]]:
        """Probe for ``window_ns``: {probe: (start_ns (N,), value (N,))}.

        Only probes that can see the last requested change need be there.
        """
        ...


@dataclass(frozen=True)
class Transition:
    """One measured switch: request to arrival, and the longest standstill on the way (ns)."""

    latency_ns: float
    stall_ns: float


def arrival(
    seen: Observation, before: dict[str, Floats], after: dict[str, Floats]
) -> Transition | None:
    """When the target's values arrive in ``seen``; None if they never do within the window.

    Args:
        seen: probes around the request.
        before: {probe: steady values at the source}.
        after: {probe: steady values at the target}.
    """
    latest_ns, stall_ns, moved = 0.0, 0.0, False
    for probe, value in seen.value.items():
        old, new = float(np.median(before[probe])), float(np.median(after[probe]))
        start_ns = seen.start_ns[probe]
        later = start_ns >= seen.request_ns
        if not _differ(before[probe], after[probe]):
            continue
        moved = True
        # Nearer to the target than to the source, on a scale where both clocks are alike.
        like_new = (np.log(value / np.sqrt(old * new)) * np.log(new / old) > 0) & later
        runs = np.convolve(like_new, np.ones(_AGREEING), "valid") == _AGREEING
        if not runs.any():
            return None
        first = int(runs.argmax())
        slowest = max(old, new)
        standstill = value[max(first - 1, 0)] if first and later[first - 1] else value[first]
        if _is_duration(probe) and standstill > 2.0 * slowest:
            # The probe that was running stood still; it ended when the next one began.
            stall_ns = max(stall_ns, float(standstill - slowest))
            first += int(value[first] == standstill)
        latest_ns = max(latest_ns, float(start_ns[min(first, len(start_ns) - 1)]))
    if not moved:
        return None
    return Transition(latest_ns - seen.request_ns, stall_ns)


def _is_duration(probe: str) -> bool:
    return probe.endswith("_ns")


def _differ(before: Floats, after: Floats) -> bool:
    """Whether a probe can tell the two pairs apart: medians further apart than the scatter."""
    old, new = float(np.median(before)), float(np.median(after))
    scatter = max(
        float(np.quantile(np.abs(values / middle - 1), 0.9))
        for values, middle in ((before, old), (after, new))
    )
    return abs(new / old - 1) > max(0.01, 3.0 * scatter)


def measure_switches(
    bench: SwitchBench,
    transitions: Sequence[tuple[ClockPair, ClockPair]],
    *,
    repeats: int = 20,
    window_ns: int = 400_000_000,
    on_done: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Measure each transition ``repeats`` times.

    Args:
        bench: the GPU, with probes.
        transitions: (from, to) pairs, neither the governor.
        repeats: observations of each.
        window_ns: how long to wait for an arrival.
        on_done: called with (transitions done, in all).

    Returns:
        A frame as `clockwright.data.tables.SWITCHES` declares. A transition whose two pairs no
        probe can tell apart is left out.

    Raises:
        InputError: no transition, or one from or to the governor, or to itself.
        LockNotHeldError: a requested clock never arrives.
    """
    if not transitions or repeats < 1:
        raise InputError("name at least one transition and one repeat")
    for pair in itertools.chain.from_iterable(transitions):
        if pair.core_mhz is None:
            raise InputError(f"{pair!s} is not a locked pair; its clock cannot arrive")
    if any(before == after for before, after in transitions):
        raise InputError("a transition needs two different pairs")
    rows = []
    for done, (before, after) in enumerate(transitions):
        row = _measure_one(bench, before, after, repeats, window_ns)
        if row is not None:
            rows.append(row)
        if on_done is not None:
            on_done(done + 1, len(transitions))
    frame = pd.DataFrame(rows, columns=list(SWITCHES.names))
    clocks = [name for name in SWITCHES.names if name.endswith("_mhz")]
    return SWITCHES.frame(frame.astype(dict.fromkeys([*clocks, "n"], "Int32")))


def _watch(
    bench: SwitchBench,
    after: ClockPair,
    window_ns: int,
    at_source: dict[str, Floats],
    at_target: dict[str, Floats],
) -> tuple[Transition | None, float]:
    """Ask once and probe until the target arrives; a late switch is waited for, never redrawn."""
    request_ns, call_ns = bench.request(after)
    start_ns: dict[str, Floats] = {}
    value: dict[str, Floats] = {}
    for _ in range(-(-window_ns // _PROBE_NS)):
        for probe, (starts, values) in bench.probe(_PROBE_NS).items():
            start_ns[probe] = np.concatenate([start_ns.get(probe, np.empty(0)), starts])
            value[probe] = np.concatenate([value.get(probe, np.empty(0)), values])
        seen = Observation(request_ns, call_ns, start_ns, value)
        transition = arrival(seen, at_source, at_target)
        if transition is not None:
            return transition, call_ns
    return None, call_ns


def _measure_one(
    bench: SwitchBench, before: ClockPair, after: ClockPair, repeats: int, window_ns: int
) -> dict[str, object] | None:
    bench.settle(after)
    at_target = bench.steady(25)
    bench.settle(before)
    at_source = bench.steady(25)
    if not any(_differ(at_source[probe], at_target[probe]) for probe in at_target):
        return None
    found: list[Transition] = []
    calls_ns: list[float] = []
    for _ in range(repeats):
        bench.settle(before)
        transition, call_ns = _watch(bench, after, window_ns, at_source, at_target)
        if transition is None:
            raise LockNotHeldError(
                f"{after!s} was requested from {before!s} and did not arrive within "
                f"{window_ns / 1e6:.0f} ms; a power or thermal cap may hold the clock down"
            )
        found.append(transition)
        calls_ns.append(call_ns)
    latency_ns = np.array([transition.latency_ns for transition in found])
    return {
        "from_core_mhz": before.core_mhz,
        "from_mem_mhz": before.mem_mhz,
        "to_core_mhz": after.core_mhz,
        "to_mem_mhz": after.mem_mhz,
        "call_ns_p50": float(np.median(calls_ns)),
        **{
            f"latency_ns_p{percent}": float(np.percentile(latency_ns, percent))
            for percent in LATENCY_PERCENTILES
        },
        "stall_ns": float(np.median([transition.stall_ns for transition in found])),
        "energy_mj": None,
        "n": repeats,
        "provenance": bench.provenance,
    }
