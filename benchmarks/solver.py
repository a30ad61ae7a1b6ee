"""The solver: certified gap and time over seeded instances, alone and beside other ways.

    python benchmarks/solver.py --kernels 3000 --pairs 200 --switch 2us,5us --seeds 8 --json
    python benchmarks/solver.py --table --peers --markdown

One JSON object a case: ``median_gap``, ``worst_gap``, ``median_s``, ``worst_s`` over the seeds and
more. Seconds are wall time of `clockwright.optimizer.solve`, integer programs in child processes
included; ``cpu_s`` is the processor time of both. Building the instance is left out, and so is
loading the compiled loops, which happens once a process and is given as ``first_call_s``. Peak
memory is of the whole process, its tables included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from instances import make_problem
from solver_peers import compare_peers, peers_markdown

from clockwright.data.units import parse_duration_ns
from clockwright.optimizer import ConstantStall, Free, SwitchModel, TwoPartStall, solve


@dataclass(frozen=True)
class Case:
    """One line of the table, with the gap and the time it has to reach."""

    kernels: int
    pairs: int
    switch: str
    target_gap: float = 1e-4
    time_limit_s: float = 30.0
    layers: bool = False
    drift: bool = False
    slowdown: float = 0.006
    seeds: int = 8

    @property
    def key(self) -> tuple[int, int, str]:
        """What names the case on the command line."""
        return self.kernels, self.pairs, self.switch


_CHEAP, _SLOW, _SLOWEST = "2us,5us", "20us,60us", "1ms,10ms"
TABLE = (
    Case(3_000, 200, _CHEAP, 1e-4, 5),
    Case(3_000, 200, _SLOW, 1e-4, 10),
    Case(3_000, 200, _SLOWEST, 1e-4, 30),
    Case(3_000, 200, _CHEAP, 1e-4, 5, drift=True, slowdown=0.05),
    Case(3_000, 200, _SLOW, 1e-4, 10, drift=True, slowdown=0.05),
    Case(3_000, 200, _SLOWEST, 1e-4, 30, drift=True, slowdown=0.05),
    Case(100_000, 200, _CHEAP, 1e-5, 10, layers=True),
    Case(1_000_000, 550, _CHEAP, 1e-6, 60, layers=True),
)


@dataclass
class Result:
    """What the seeds of one case gave."""

    case: Case
    gaps: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    savings: list[float] = field(default_factory=list)
    switches: list[int] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    peak_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """One flat object."""
        return {
            **asdict(self.case),
            "median_gap": statistics.median(self.gaps),
            "worst_gap": max(self.gaps),
            "median_s": statistics.median(self.seconds),
            "worst_s": max(self.seconds),
            "median_cpu_s": statistics.median(self.cpu_seconds),
            "worst_cpu_s": max(self.cpu_seconds),
            "median_saving": statistics.median(self.savings),
            "median_switches": statistics.median(self.switches),
            "peak_bytes": self.peak_bytes,
            "gaps": self.gaps,
            "seconds": self.seconds,
            "methods": self.methods,
        }


def parse_switch(text: str) -> SwitchModel:
    """``free``, ``1ms`` or ``2us,5us`` (core part, memory part)."""
    if text == "free":
        return Free()
    parts = [float(parse_duration_ns(part)) for part in text.split(",")]
    return ConstantStall(*parts) if len(parts) == 1 else TwoPartStall(*parts)


def cpu_s() -> float:
    """Processor time of this process and of the children it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def run_case(case: Case) -> Result:
    """Solve every seed of a case."""
    result = Result(case)
    _forget_peak()
    for seed in range(case.seeds):
        problem = make_problem(
            case.kernels,
            case.pairs,
            parse_switch(case.switch),
            seed=seed,
            layers=case.layers,
            drift=case.drift,
        )
        begin, cpu = time.perf_counter(), cpu_s()
        found = solve(
            problem, case.slowdown, time_limit_s=case.time_limit_s, tolerance=case.target_gap
        )
        result.seconds.append(time.perf_counter() - begin)
        result.cpu_seconds.append(cpu_s() - cpu)
        result.gaps.append(found.gap)
        result.savings.append(found.saving)
        result.switches.append(found.n_switches)
        result.methods.append(found.method)
    result.peak_bytes = _peak_bytes()
    return result


def _forget_peak() -> None:
    """Start the process's peak of resident memory anew, where Linux allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def warm_up() -> float:
    """Load (or, on a new machine, compile) the loops all cases use; seconds it took."""
    begin = time.perf_counter()
    for switch in ("free", _CHEAP, _SLOWEST):
        problem = make_problem(60, 20, parse_switch(switch), seed=0)
        solve(problem, 0.006, time_limit_s=60, tolerance=0.0)
    return time.perf_counter() - begin


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table of results."""
    lines = [
        "| kernels x pairs | switches | instances | slowdown | gap median | worst | wall s median "
        "| worst | CPU s worst | saving median | switches median | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        kind = (
            "a layer repeated" if row["layers"] else "drifting" if row["drift"] else "independent"
        )
        lines.append(
            f"| {row['kernels']:,} x {row['pairs']} | {row['switch']} | {row['seeds']} {kind} "
            f"| {row['slowdown']:.1%} | {row['median_gap']:.1e} | {row['worst_gap']:.1e} "
            f"| {row['median_s']:.2f} | {row['worst_s']:.2f} | {row['worst_cpu_s']:.2f} "
            f"| {row['median_saving']:.1%} | {row['median_switches']:,.0f} "
            f"| {row['peak_bytes'] / 1e6:.0f} |"
        )
    return "\n".join(lines)


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    if arguments.table:
        yield from TABLE
        return
    if arguments.peers and arguments.kernels is None:
        return
    kernels, pairs = arguments.kernels or 3_000, arguments.pairs
    known = next((case for case in TABLE if case.key == (kernels, pairs, arguments.switch)), None)
    yield Case(
        kernels,
        pairs,
        arguments.switch,
        arguments.gap or (known.target_gap if known else 1e-4),
        arguments.time_limit or (known.time_limit_s if known else 30.0),
        layers=arguments.layers or bool(known and known.layers),
        drift=arguments.drift,
        slowdown=arguments.slowdown,
        seeds=arguments.seeds,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=int)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--switch", default=_CHEAP, help="free, 1ms or 2us,5us (core, memory)")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--slowdown", type=float, default=0.006, help="budget, a fraction")
    parser.add_argument("--gap", type=float, help="stop at (default: the table's)")
    parser.add_argument("--time-limit", type=float, help="s an instance (default: the table's)")
    parser.add_argument("--layers", action="store_true", help="one layer's signatures repeated")
    parser.add_argument("--drift", action="store_true", help="kernels alike in long stretches")
    parser.add_argument("--table", action="store_true", help="every case of the table")
    parser.add_argument("--peers", action="store_true", help="other ways on the same instances")
    parser.add_argument("--peer-limit", type=float, default=60.0, help="s an integer program")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--markdown", action="store_true", help="Markdown tables (default)")
    return parser.parse_args()


def main() -> int:
    """Run what was asked and print it."""
    arguments = _arguments()
    first_call_s = warm_up()
    results = []
    for case in _cases(arguments):
        row = run_case(case).to_json() | {"first_call_s": first_call_s}
        results.append(row)
        if arguments.json:
            print(json.dumps(row), flush=True)
    peers = compare_peers(arguments.peer_limit) if arguments.peers else []
    if arguments.json:
        for peer in peers:
            print(json.dumps(peer), flush=True)
    if arguments.markdown or not arguments.json:
        print(f"{platform.machine()}, {os.cpu_count()} cores; first call {first_call_s:.1f} s\n")
        if results:
            print(markdown(results))
        if peers:
            print("\n" + peers_markdown(peers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
