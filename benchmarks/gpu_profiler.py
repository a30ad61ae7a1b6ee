"""The profiler on against off, side by side, on a real GPU: does a profile add up to the step?

Run on a machine with one NVIDIA GPU::

    CLOCKWRIGHT_READ_ONLY=1 python benchmarks/gpu_profiler.py --rounds 3 --out gpu_profiler.json

Each round measures the step with the profiler off, profiled, and off again, exactly as a recording
does. The peer is the step with the profiler off, mean of the windows around: printed are the
profiled step (by the GPU's events) and the sum of profiled kernels and gaps, both relative to it.
Before that, chains of equal small kernels queued behind a spin, profiler off, on and off again:
what the profiler adds from one kernel to the next where the host is no part of it. Sets no clock.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clockwright.tracer.gpu.select import open_gpu
from clockwright.tracer.measure.cuda import between_ns, mark, spin
from clockwright.tracer.measure.timeline import profile_to, read_timeline
from clockwright.tracer.recording.session import Session
from clockwright.tracer.workloads import load

_ELEMENTS = (1 << 10, 1 << 22)
_CHAIN, _REPEATS = 400, 5
_SPIN_CYCLES = 40_000_000  # some 20 ms: the host has queued the chain by then


def chain_ns(kernels: int, elements: int) -> float:
    """From one kernel to the next, by the GPU's events, in a chain that the host queued ahead."""
    values = torch.zeros(elements, device="cuda")
    torch.cuda.synchronize()
    spin(_SPIN_CYCLES)
    begin = mark()
    for _ in range(kernels):
        values.add_(1.0)
    end = mark()
    end.synchronize()
    return between_ns(begin, end) / kernels


def per_kernel(folder: Path) -> list[dict[str, float]]:
    """Chains of kernels of two sizes, profiler off, on and off."""
    found = []
    for elements in _ELEMENTS:
        chain_ns(_CHAIN, elements)  # compile and warm
        on: list[float] = []
        before = [chain_ns(_CHAIN, elements) for _ in range(_REPEATS)]

        def body(elements: int = elements, on: list[float] = on) -> None:
            on += [chain_ns(_CHAIN, elements) for _ in range(_REPEATS + 1)]

        profile_to(folder / "chain.json", body)
        after = [chain_ns(_CHAIN, elements) for _ in range(_REPEATS)]
        found.append(
            {
                "elements": elements,
                "off_ns": median([*before, *after]),
                "on_ns": median(on[1:]),  # the first makes the profiler's buffers
            }
        )
    return found


def one_round(parts: dict[str, Any], session: Session, folder: Path) -> dict[str, Any]:
    """One window off, one on, one off."""
    for name in ("step", "timeline", "again"):
        parts[name]()
    raw = session.record
    off = [raw[name]["plain"] for name in ("step", "again")]
    off_ns = sum(entry["time_ns"] for entry in off) / len(off)
    timeline = read_timeline(folder / "timeline.json")
    return {
        "off_ns": [entry["time_ns"] for entry in off],
        "off_mhz": [entry["window"]["core_mhz"] for entry in off],
        "on_mhz": raw["profiled_core_mhz"],
        "on": raw["profiled_step_ns"] / off_ns - 1,
        "parts": float(timeline.span_ns.mean()) / off_ns - 1,
        "gaps_ns": float((timeline.span_ns - timeline.busy_ns).mean()),
        "span_ns": timeline.span_ns.tolist(),
        "dropped": timeline.dropped,
    }


def main() -> None:
    """Measure, print a line a round, write everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workload", default="gpt3-xl")
    parser.add_argument("--options", default='{"layers": 4, "batch": 4, "vocab": 50304}')
    arguments = parser.parse_args()
    workload = load(arguments.workload, json.loads(arguments.options))
    gpu, rounds = open_gpu("nvml:0"), []
    with TemporaryDirectory() as name:
        chains = per_kernel(Path(name))
    for chain in chains:
        print(
            f"{chain['elements']} elements: {chain['off_ns']:.0f} ns a kernel, profiled "
            f"{chain['on_ns']:.0f} ns",
            flush=True,
        )
    with TemporaryDirectory() as name, Session(workload, gpu, Path(name)) as session:
        parts = dict(session.parts())
        parts["build"]()
        for number in range(arguments.rounds):
            found = one_round(parts, session, Path(name))
            rounds.append(found)
            print(
                f"round {number}: {len(found['span_ns'])} steps, profiled {found['on']:+.2%} at "
                f"{found['on_mhz']:.0f} MHz (off: {found['off_mhz'][0]:.0f}, "
                f"{found['off_mhz'][1]:.0f}), kernels and gaps {found['parts']:+.2%}",
                flush=True,
            )
            arguments.out.write_text(json.dumps({"chains": chains, "rounds": rounds}))
    gpu.close()


if __name__ == "__main__":
    main()
