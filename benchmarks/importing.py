"""Importing a Kineto trace: time, memory and kernel time beside HolisticTraceAnalysis.

Both read the same generated file, each in a fresh process, with its libraries loaded before the
clock starts; the whole process is timed too. HolisticTraceAnalysis (from PyPI, default settings:
``hta.common.trace.parse_trace_file``) needs pandas below 3, so it lives in a virtual environment of
its own, made on first use. What is compared is the reading: clockwright's includes finding the
steps and building the trace, not writing it.

    python benchmarks/importing.py --sizes 10 100 1000 --out importing.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kineto_generator import generate

ROOT = Path(__file__).resolve().parents[1]
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas<3")

_MEASURE = """
import json, resource, sys, time
{imports}
begin, cpu = time.perf_counter(), time.process_time()
{read}
seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
{count}
print(json.dumps(dict(seconds=seconds, cpu_seconds=cpu, peak_bytes=peak, kernels=int(kernels),
                      total_kernel_ns=int(total_ns))))
"""
_CLOCKWRIGHT = _MEASURE.format(
    imports="from clockwright.tracer import importers\nimport clockwright.tracer.importers.ranks",
    read="result = importers.import_file(sys.argv[1])",
    count="kernels, total_ns = result.kernels, result.total_kernel_ns",
)
_HTA = _MEASURE.format(
    imports="import logging, warnings\nlogging.disable(logging.CRITICAL)\n"
    "warnings.simplefilter('ignore')\nfrom hta.common.trace import parse_trace_file",
    read="_, frame, symbols = parse_trace_file(sys.argv[1])",
    count="rows = frame[frame['cat'].eq(symbols.sym_index['kernel'])]\n"
    "kernels, total_ns = len(rows), round(rows['dur'].sum() * 1000)",
)


def hta_python(venv: Path) -> Path:
    """The interpreter of HolisticTraceAnalysis's own environment, made if it is not there."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *HTA]
        subprocess.run(install, check=True)
    return python


def measure(python: Path, code: str, trace: Path, repeats: int) -> dict[str, Any]:
    """Median over ``repeats`` fresh processes."""
    runs = []
    for _ in range(repeats):
        begin = time.perf_counter()
        done = subprocess.run(
            [str(python), "-c", code, str(trace)], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        runs[-1]["process_seconds"] = time.perf_counter() - begin
    median = {
        key: statistics.median(run[key] for run in runs)
        for key in ("seconds", "cpu_seconds", "process_seconds", "peak_bytes")
    }
    return runs[0] | median | {"repeats": repeats}


def compare(megabytes: float, folder: Path, python: Path | None) -> dict[str, Any]:
    """Generate one file and measure both on it; HolisticTraceAnalysis only with ``python``."""
    trace = folder / f"kineto-{megabytes:g}mb.json"
    written = generate(trace, int(megabytes * 1e6))
    repeats = 5 if megabytes <= 20 else 3 if megabytes <= 200 else 1
    ours = measure(Path(sys.executable), _CLOCKWRIGHT, trace, repeats)
    if (ours["kernels"], ours["total_kernel_ns"]) != (written.kernels, written.total_kernel_ns):
        raise SystemExit(f"{trace.name}: clockwright read {ours}, the file holds {written}")
    row: dict[str, Any] = {"megabytes": megabytes, "written": asdict(written), "clockwright": ours}
    if python is not None:
        row["hta"] = measure(python, _HTA, trace, repeats)
    trace.unlink()
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [
        "| file | reader | read, s | CPU, s | whole process, s | peak memory, MB | kernels "
        "| kernel time, ns | of the time in the file |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        truth = row["written"]["total_kernel_ns"]
        for name in ("clockwright", "hta"):
            if (got := row.get(name)) is None:
                continue
            lines.append(
                f"| {row['megabytes']:g} MB | {name} | {got['seconds']:.2f} "
                f"| {got['cpu_seconds']:.2f} | {got['process_seconds']:.2f} "
                f"| {got['peak_bytes'] / 1e6:.0f} | {got['kernels']} | {got['total_kernel_ns']} "
                f"| {100 * got['total_kernel_ns'] / truth:.3f}% |"
            )
        if "hta" in row:
            ours, theirs = row["clockwright"], row["hta"]
            lines.append(
                f"| {row['megabytes']:g} MB | ratio "
                f"| {theirs['seconds'] / ours['seconds']:.1f}x "
                f"| {theirs['cpu_seconds'] / ours['cpu_seconds']:.1f}x "
                f"| {theirs['process_seconds'] / ours['process_seconds']:.1f}x "
                f"| {theirs['peak_bytes'] / ours['peak_bytes']:.2f}x | | | |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", type=float, default=[10, 100, 1000], metavar="MB")
    parser.add_argument("--alone", nargs="*", type=float, default=[], metavar="MB")
    parser.add_argument("--hta-venv", type=Path, default=ROOT / ".venv-hta")
    parser.add_argument("--folder", type=Path, help="where to put the files (default: temporary)")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    arguments = parser.parse_args()
    python = hta_python(arguments.hta_venv) if arguments.sizes else None
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = [compare(size, Path(folder), python) for size in arguments.sizes]
        rows += [compare(size, Path(folder), None) for size in arguments.alone]
    print(f"{os.cpu_count()} cores; --sizes beside HolisticTraceAnalysis, --alone without it")
    print(table(rows))
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
