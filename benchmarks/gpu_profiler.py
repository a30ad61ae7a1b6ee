"""The profiler on against off, side by side, on a real GPU: does a profile add up to the step?

Run on a machine with one NVIDIA GPU::

    CLOCKWRIGHT_READ_ONLY=1 python benchmarks/gpu_profiler.py --rounds 3 --out gpu_profiler.json

Each round measures the step with the profiler off, profiled, and off again, exactly as a recording
does. The peer is the step with the profiler off, mean of the windows around: printed are the
profiled step (by the GPU's events) and the sum of profiled kernels and gaps, both relative to it.
Sets no clock.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clockwright.tracer.gpu.select import open_gpu
from clockwright.tracer.measure.timeline import read_timeline
from clockwright.tracer.recording.session import Session
from clockwright.tracer.workloads import load


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
            arguments.out.write_text(json.dumps(rounds))
    gpu.close()


if __name__ == "__main__":
    main()
