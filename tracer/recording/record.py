"""From an instrument to a trace folder: unlocked (nothing is set) or over locked pairs.

Raw figures stay beside the output, in ``OUTPUT.recording``: ``unlocked`` holds the last recording
without clocks set, ``locked`` a sweep that a second run continues. Whatever ends a recording early,
what can be put together of it is written first and marked partial: to the output, or to
``OUTPUT.partial`` where the output holds a whole trace already.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...data import trace as trace_file
from ...data.errors import ClockwrightError, DeviceBusyError, InputError, ReadOnlyError
from ...data.trace import Trace
from ..gpu.protocol import Gpu, ThrottleReason
from ..gpu.select import find_nvml_uuid, list_gpus
from .instrument import Instrument, MeasurementInterrupted
from .locked_sweep import LockedSweep, Progress, SweepOptions
from .session import MeasureOptions

__all__ = ["check_request", "cuda_device", "how_much", "record", "refuse_busy"]


def check_request(output: Path, *, set_clocks: bool, sweep: SweepOptions, switches: bool) -> None:
    """Refuse what cannot end well, before anything is opened or measured.

    Raises:
        ReadOnlyError: something that sets clocks is asked for without ``set_clocks``.
        InputError: the output is taken by something that is no trace.
    """
    asked = {"--pairs": sweep.pairs is not None, "--exhaustive": sweep.exhaustive}
    asked["--switches"] = switches
    wanted = [name for name, is_asked in asked.items() if is_asked]
    if wanted and not set_clocks:
        raise ReadOnlyError(
            f"{wanted[0]} sets clocks of a real GPU; say --set-clocks to allow it, or leave it out "
            "to trace without setting anything"
        )
    taken = output.exists() and not (output / "trace.json").is_file()
    if taken and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} exists and is no trace folder; name another output")


def refuse_busy(gpu: Gpu) -> tuple[str, ...]:
    """Refuse a GPU that others compute on; a note where that cannot be known.

    Raises:
        DeviceBusyError: the first other process, by its id.
    """
    others = gpu.busy_processes()
    if others:
        raise DeviceBusyError(
            f"process {others[0]} computes on {gpu.info.name} too, so neither times nor energies "
            "would be the step's own; wait for it to end, or trace on another GPU"
        )
    if others is None:
        return (
            "whether other processes computed on the GPU is unknown: process ids of the host "
            "cannot be compared from within this container",
        )
    return ()


def cuda_device(spec: str) -> str:
    """``nvml:2`` or ``nvml:GPU-...`` as PyTorch names it here, such as ``cuda:2``.

    Raises:
        InputError: the GPU is hidden from this process's CUDA.
    """
    which = spec.partition(":")[2].strip()
    if which.isdigit():
        return f"cuda:{which}"
    uuid = find_nvml_uuid(which)
    for listing in list_gpus():
        if listing.spec == f"nvml:{uuid}" and listing.cuda_index is not None:
            return f"cuda:{listing.cuda_index}"
    raise InputError(
        f"{spec} is hidden from CUDA here (CUDA_VISIBLE_DEVICES); name a GPU that is visible"
    )


def how_much(
    *, set_clocks: bool, deadline_s: float | None = None, repeats: int | None = None
) -> MeasureOptions:
    """How much one measurement takes in.

    Args:
        set_clocks: it is one of many in a sweep, and shorter for that.
        deadline_s: begin nothing new so long after its start, where it is the only one.
        repeats: profiled steps.
    """
    options = MeasureOptions()
    if repeats is not None:
        options = replace(options, timeline_steps=repeats)
    if set_clocks:
        return replace(options, step_seconds=1.5, mix_seconds=0.6)
    return options if deadline_s is None else replace(options, deadline_s=deadline_s)


def record(
    instrument: Instrument,
    output: Path,
    *,
    set_clocks: bool = False,
    sweep: SweepOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_partial: Callable[[Path], None] | None = None,
) -> Trace:
    """Record the step and write its trace folder.

    Args:
        instrument: measures the step on a real GPU.
        output: the trace folder.
        set_clocks: False: nothing is set; the step as it runs, and rows at clocks that moved by
            themselves. True: a sweep over locked pairs, through the clock keeper.
        sweep: what to visit, with ``set_clocks``.
        on_progress: called before each pair of a sweep.
        on_partial: called with the folder of a partial trace, once it is written.

    Raises:
        DeviceBusyError: others compute on the GPU.
        ClockwrightError, KeyboardInterrupt: as they arise; what was measured is written first.
    """
    output = Path(output)
    notes = refuse_busy(instrument.gpu)
    raw = output.with_name(output.name + ".recording")

    def keep(trace: Trace) -> None:
        folder = output.with_name(output.name + ".partial") if _is_whole(output) else output
        _write(trace, folder, notes)
        if on_partial is not None:
            on_partial(folder)

    if not set_clocks:
        try:
            trace = instrument.measure(_emptied(raw / "unlocked"), sensed=True)
        except MeasurementInterrupted as stop:
            keep(stop.trace)
            raise
        return _write(trace, output, (*notes, *_heat_note(trace)))
    locked = LockedSweep(instrument, raw / "locked", sweep, on_progress=on_progress)
    try:
        return _write(locked.run(), output, notes)
    except (ClockwrightError, KeyboardInterrupt):
        part = locked.trace()
        if part is not None:
            keep(part)
        raise


def _emptied(folder: Path) -> Path:
    """One of our own raw folders, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error
    return folder


def _is_whole(output: Path) -> bool:
    """True if a trace is there that is not partial."""
    try:
        return trace_file.read(output).partial is None
    except InputError:
        return False


def _write(trace: Trace, output: Path, notes: tuple[str, ...]) -> Trace:
    noted = replace(trace, notes=tuple(dict.fromkeys((*trace.notes, *notes))))
    trace_file.write(noted, output)
    return noted


def _heat_note(trace: Trace) -> tuple[str, ...]:
    """A note if no row is free of thermal throttling."""
    reasons = trace.pairs["throttle_reasons"].fillna(0).astype("int64")
    if len(reasons) and ((reasons & ThrottleReason.THERMAL) != 0).all():
        return (
            "the GPU throttled for heat throughout: times and energies are those of a hot GPU; "
            "see to its cooling and trace again",
        )
    return ()
