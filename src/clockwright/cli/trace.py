"""``clockwright trace``: record what a workload launches and what it costs at each clock pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..data.errors import InputError
from ..data.units import ClockPair, counted, parse_fraction, parse_pair
from ._output import emit, json_option, progress, say

if TYPE_CHECKING:
    import pandas as pd

    from ..data.trace import Trace
    from ..tracer.recording.locked_sweep import Progress, SweepOptions

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
@click.option("--repeats", type=int, help="Measured steps a pair (8 simulated, 30 on a real GPU).")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of a simulated GPU.",
)
@click.option(
    "--switches",
    is_flag=True,
    help="Measure clock switches too; without a WORKLOAD, only those, as a .csv or .parquet table.",
)
@click.option(
    "--set-clocks",
    is_flag=True,
    help="Sweep locked clock pairs of a real GPU, through the clock keeper; else none is set.",
)
@click.option("--exhaustive", is_flag=True, help="With --set-clocks: measure every pair, fit none.")
@click.option(
    "--target-error",
    help="With --set-clocks: stop once the fitted pairs' stated median error is at most this "
    "[default: 2%].",
)
@click.option("--minutes", type=float, help="On a real GPU: begin nothing new after so long.")
@json_option
def command(
    workload: str | None,
    gpu: str,
    output: Path,
    more: tuple[str, ...],
    pairs_text: str | None,
    repeats: int | None,
    seed: int,
    switches: bool,
    set_clocks: bool,
    exhaustive: bool,
    target_error: str | None,
    minutes: float | None,
    as_json: bool,
    **named: str | int | None,
) -> None:
    """Trace WORKLOAD: gpt3-xl, gpt2, bert-base, hf:NAME, FILE.py:FUNCTION or MODULE:FUNCTION.

    On a simulated GPU the kernel sequence is captured from the real PyTorch model without
    allocating it, and every time and energy is simulated.

    On a real GPU the step is run and measured. Nothing is set: clocks are sensed as they move by
    themselves. With --set-clocks the clock keeper locks pair after pair; a sweep that was cut short
    goes on when the same command is given again.
    """
    simulated = gpu.strip().lower().startswith("sim")
    if simulated:
        _refuse_real_options(set_clocks, exhaustive, target_error, minutes)
    options = _options(named, more)
    pairs = _pairs(pairs_text)
    if workload is None:
        if not switches:
            raise InputError("name a WORKLOAD to trace, or measure switches alone with --switches")
        table = _measure_switches(gpu, pairs, seed, set_clocks, as_json)
        _write_switches(table, output, as_json)
        return
    if simulated:
        trace = _record_simulated(workload, options, gpu, pairs, repeats, seed, as_json)
    else:
        error = target_error or "2%"
        request = _RealRequest(pairs, repeats, set_clocks, exhaustive, error, minutes)
        trace = _record_real(workload, options, gpu, output, request, switches, as_json)
    if switches:
        table = _measure_switches(gpu, None, seed, set_clocks, as_json)
        trace = _with_switches(trace, table)
    if simulated or switches:  # a real recording is on disk already
        with progress(quiet=as_json) as display:
            display.add_task("writing", total=None)
            from ..data import trace as trace_file

            trace_file.write(trace, output)
    _report(trace, output, as_json)


def _refuse_real_options(*values: Any) -> None:
    names = ("--set-clocks", "--exhaustive", "--target-error", "--minutes")
    for name, value in zip(names, values, strict=True):
        if value not in (None, False):
            raise InputError(
                f"{name} is for a real GPU (--gpu nvml:0); a simulated one always visits every "
                "pair of its sweep, or those of --pairs"
            )


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


def _record_simulated(
    workload: str,
    options: dict[str, str | int],
    gpu: str,
    pairs: list[ClockPair] | None,
    repeats: int | None,
    seed: int,
    quiet: bool,
) -> Trace:
    from ..tracer.gpu.select import open_gpu

    device = open_gpu(gpu, seed=seed)
    from ..tracer import workloads
    from ..tracer.gpu.simulated import SimulatedGpu
    from ..tracer.record_simulated import record_simulated

    if not isinstance(device, SimulatedGpu):
        raise InputError(f"--gpu {gpu} is not a simulated GPU that runs steps")
    with progress(quiet=quiet) as display:
        task = display.add_task("capturing the step", total=None)

        def on_pair(done: int, total: int) -> None:
            display.update(task, description="clock pairs", completed=done, total=total)

        step = workloads.load(workload, options).capture()
        count = 8 if repeats is None else repeats
        return record_simulated(step, device, pairs=pairs, repeats=count, on_pair=on_pair)


@dataclass(frozen=True)
class _RealRequest:
    """What was asked of a real GPU, as the options have it."""

    pairs: list[ClockPair] | None
    repeats: int | None
    set_clocks: bool
    exhaustive: bool
    target_error: str
    minutes: float | None

    def sweep(self) -> SweepOptions:
        """The sweep that was asked for."""
        from ..tracer.recording.locked_sweep import SweepOptions

        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"--minutes must be over 0, got {self.minutes:g}")
        if self.repeats is not None and self.repeats < 2:
            raise InputError(f"--repeats must be at least 2, to know a spread; got {self.repeats}")
        return SweepOptions(
            pairs=self.pairs,
            exhaustive=self.exhaustive,
            target_error=parse_fraction(self.target_error),
            deadline_s=None if self.minutes is None else self.minutes * 60,
        )


def _record_real(
    workload: str,
    options: dict[str, str | int],
    gpu: str,
    output: Path,
    request: _RealRequest,
    switches: bool,
    quiet: bool,
) -> Trace:
    from ..tracer import workloads
    from ..tracer.gpu.select import open_gpu
    from ..tracer.recording import instrument, record

    sweep = request.sweep()
    record.check_request(output, set_clocks=request.set_clocks, sweep=sweep, switches=switches)
    device = open_gpu(gpu)
    try:
        loaded = workloads.load(workload, options)
        with progress(quiet=quiet) as display:
            pairs = display.add_task("clock pairs", total=None, visible=request.set_clocks)
            part = display.add_task("starting", total=None)

            def on_progress(at: Progress) -> None:
                sure = "" if at.stated_error is None else f", stated error {at.stated_error:.1%}"
                text = f"clock pairs: {at.pair}{sure}"
                display.update(pairs, description=text, completed=at.measured, total=at.most)

            made = instrument.SessionInstrument(
                loaded,
                device,
                device=record.cuda_device(gpu),
                options=record.how_much(
                    set_clocks=request.set_clocks,
                    deadline_s=sweep.deadline_s,
                    repeats=request.repeats,
                ),
                on_part=lambda name: display.update(part, description=name),
            )
            return record.record(
                made,
                output,
                set_clocks=request.set_clocks,
                sweep=sweep,
                on_progress=on_progress,
                on_partial=_tell_kept,
            )
    finally:
        device.close()


def _tell_kept(folder: Path) -> None:
    click.echo(f"what was measured until then is kept, marked partial, in {folder}", err=True)


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

        return record_switches(
            device,
            pairs=pairs,
            set_clocks=set_clocks,
            device=_kernel_device(gpu) if set_clocks and not device.info.simulated else None,
            on_done=on_done,
        )


def _with_switches(trace: Trace, table: pd.DataFrame) -> Trace:
    if not trace.simulated:
        return replace(trace, switches=table)
    count = counted(len(table), "transition")
    note = f"{count} measured on the simulated GPU stand in place of its model's own table"
    return replace(trace, switches=table, notes=(*trace.notes, note))


def _kernel_device(gpu: str) -> str | None:
    """The GPU as PyTorch names it, if it can launch kernels here; else None, and a word on it."""
    import torch

    from ..tracer.recording.record import cuda_device

    if torch.cuda.is_available():
        return cuda_device(gpu)
    click.echo(
        "PyTorch sees no CUDA here: switches are seen by the clock that the driver reports, and "
        "latencies are upper bounds",
        err=True,
    )
    return None


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
    if median_ns:
        least, most = (f"{value / 1e6:.3f}" for value in (min(median_ns), max(median_ns)))
        say(f"{counted(len(table), 'transition')}, median latency {least} to {most} ms")
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
        "notes": list(trace.notes),
    }
    if as_json:
        emit(document)
        return
    label = " (simulated)" if trace.simulated else ""
    say(
        f"{trace.workload['name']} on {trace.gpu['name']}: "
        f"{counted(len(trace.timeline), 'kernel')}, "
        f"{counted(len(trace.signatures), 'signature')}, {counted(len(trace.pairs), 'clock pair')}"
    )
    if time_ns is not None and energy_mj is not None:
        cost = f"{time_ns / 1e6:.3f} ms, {energy_mj / 1e3:.3f} J"
        say(f"baseline {trace.baseline.pair}: {cost}{label}")
    for note in () if trace.simulated else trace.notes:
        say(f"note: {note}")
    if trace.partial is not None:
        say(f"partial: {trace.partial}")
    say(f"wrote {output}")
