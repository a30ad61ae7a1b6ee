"""``clockwright trace``: record what a workload launches and what it costs at each clock pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..data.errors import InputError
from ..data.units import ClockPair, parse_pair
from ._output import emit, json_option, progress, say

if TYPE_CHECKING:
    import pandas as pd

    from ..data.trace import Trace

__all__ = ["command"]


@click.command("trace")
@click.argument("workload", required=False)
@click.option("--gpu", required=True, help="sim:rtx3080ti, sim:v100, sim:h200, or nvml:INDEX|UUID.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Trace folder to write."
)
@click.option("--layers", type=int, help="Layers of a named model.")
@click.option("--batch", type=int, help="Sequences in a batch.")
@click.option("--sequence", type=int, help="Tokens in a sequence.")
@click.option("--precision", help="bf16, fp16, tf32 or fp32.")
@click.option("--mode", type=click.Choice(["train", "infer"]), help="Training or inference step.")
@click.option("--option", "more", multiple=True, metavar="KEY=VALUE", help="Any other option.")
@click.option("--pairs", "pairs_text", help="Pairs to visit, CORE/MEM,... (default: the sweep).")
@click.option("--repeats", type=int, default=3, show_default=True, help="Measured steps a pair.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of a simulated GPU.")
@click.option(
    "--switches",
    is_flag=True,
    help="Measure clock switches too; without a WORKLOAD, only those, as a .csv or .parquet table.",
)
@click.option(
    "--set-clocks", is_flag=True, help="Allow a real GPU's clocks to be set, by the clock keeper."
)
@json_option
def command(
    workload: str | None,
    gpu: str,
    output: Path,
    more: tuple[str, ...],
    pairs_text: str | None,
    repeats: int,
    seed: int,
    switches: bool,
    set_clocks: bool,
    as_json: bool,
    **named: str | int | None,
) -> None:
    """Trace WORKLOAD: gpt3-xl, gpt2, bert-base, hf:NAME, FILE.py:FUNCTION or MODULE:FUNCTION.

    On a simulated GPU the kernel sequence is captured from the real PyTorch model without
    allocating it, and every time and energy is simulated.
    """
    options = _options(named, more)
    pairs = _pairs(pairs_text)
    if workload is None:
        if not switches:
            raise InputError("name a WORKLOAD to trace, or measure switches alone with --switches")
        table = _measure_switches(gpu, pairs, seed, set_clocks, as_json)
        _write_switches(table, output, as_json)
        return
    with progress(quiet=as_json) as display:
        task = display.add_task("capturing the step", total=None)

        def on_pair(done: int, total: int) -> None:
            display.update(task, description="clock pairs", completed=done, total=total)

        trace = _record(workload, options, gpu, pairs, repeats, seed, on_pair)
    if switches:
        table = _measure_switches(gpu, None, seed, set_clocks, as_json)
        trace = replace(trace, switches=table)
    with progress(quiet=as_json) as display:
        display.add_task("writing", total=None)
        from ..data import trace as trace_file

        trace_file.write(trace, output)
    _report(trace, output, as_json)


def _options(named: dict[str, str | int | None], more: tuple[str, ...]) -> dict[str, str | int]:
    options = {key: value for key, value in named.items() if value is not None}
    for text in more:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--option takes KEY=VALUE, got {text!r}")
        options[key] = int(value) if value.lstrip("-").isdigit() else value
    return options


def _pairs(text: str | None) -> list[ClockPair] | None:
    if text is None:
        return None
    pairs = [parse_pair(part) for part in text.split(",")]
    if any(pair.is_governor for pair in pairs):
        raise InputError("--pairs lists locked pairs; the governor is always visited first")
    return pairs


def _record(
    workload: str,
    options: dict[str, str | int],
    gpu: str,
    pairs: list[ClockPair] | None,
    repeats: int,
    seed: int,
    on_pair: Any,
) -> Trace:
    from ..tracer.gpu.select import open_gpu

    device = open_gpu(gpu, seed=seed)
    from ..tracer import workloads
    from ..tracer.gpu.simulated import SimulatedGpu
    from ..tracer.record_simulated import record_simulated

    if not isinstance(device, SimulatedGpu):
        raise InputError(f"--gpu {gpu}: recording on real GPUs is not in this release yet")
    step = workloads.load(workload, options).capture()
    return record_simulated(step, device, pairs=pairs, repeats=repeats, on_pair=on_pair)


def _measure_switches(
    gpu: str, pairs: list[ClockPair] | None, seed: int, set_clocks: bool, quiet: bool
) -> pd.DataFrame:
    from ..tracer.gpu.select import open_gpu
    from ..tracer.record_switches import record_switches

    device = open_gpu(gpu, seed=seed)
    with progress(quiet=quiet) as display:
        task = display.add_task("clock switches", total=None)

        def on_done(done: int, total: int) -> None:
            display.update(task, completed=done, total=total)

        return record_switches(device, pairs=pairs, set_clocks=set_clocks, on_done=on_done)


def _write_switches(table: pd.DataFrame, output: Path, as_json: bool) -> None:
    from ..data._files import replace_file
    from ..data.tables import SWITCHES

    if output.suffix not in {".csv", ".parquet"}:
        raise InputError(f"{output}: name a .csv or .parquet file for the switch table")
    with replace_file(output) as temporary:
        if output.suffix == ".csv":
            SWITCHES.frame(table).to_csv(temporary, index=False)
        else:
            SWITCHES.write(table, temporary)
    median_ns = [float(value) for value in table["latency_ns_p50"]]
    document = {
        "output": str(output),
        "transitions": len(table),
        "simulated": "simulated" in set(table["provenance"]),
        "latency_ns_p50": {"least": min(median_ns), "most": max(median_ns)} if median_ns else None,
    }
    if as_json:
        emit(document)
        return
    say(f"{len(table)} transitions, median latency {min(median_ns):.0f} to {max(median_ns):.0f} ns")
    say(f"wrote {output}")


def _report(trace: Trace, output: Path, as_json: bool) -> None:
    time_ns, energy_mj = trace.baseline.time_ns, trace.baseline.energy_mj
    document: dict[str, Any] = {
        "output": str(output),
        "simulated": trace.simulated,
        "gpu": trace.gpu["name"],
        "workload": trace.workload["name"],
        "kernels": len(trace.timeline),
        "signatures": len(trace.signatures),
        "clock_pairs": len(trace.pairs),
        "baseline": {"pair": str(trace.baseline.pair), "time_ns": time_ns, "energy_mj": energy_mj},
        "fingerprint": trace.fingerprint,
        "partial": trace.partial,
    }
    if as_json:
        emit(document)
        return
    label = " (simulated)" if trace.simulated else ""
    say(
        f"{trace.workload['name']} on {trace.gpu['name']}: {len(trace.timeline)} kernels, "
        f"{len(trace.signatures)} signatures, {len(trace.pairs)} clock pairs"
    )
    if time_ns is not None and energy_mj is not None:
        cost = f"{time_ns / 1e6:.3f} ms, {energy_mj / 1e3:.3f} J"
        say(f"baseline {trace.baseline.pair}: {cost}{label}")
    say(f"wrote {output}")
