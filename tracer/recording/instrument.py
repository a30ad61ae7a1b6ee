"""What measures a step at the clocks in force: one small protocol, and the real GPU's way.

An instrument never sets a clock: who calls it has locked one through the keeper, or has not. It
hands back a trace of a single pair row, whose requested clocks the caller fills in. So a sweep is
the same code on a real GPU and in tests, where another instrument stands in.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...data.errors import ClockwrightError, WorkloadError
from ...data.trace import Trace
from ..gpu.protocol import Capability, Gpu

if TYPE_CHECKING:
    from ..workloads import Workload
    from ..workloads.step import Step
    from .session import MeasureOptions, Session

__all__ = ["Instrument", "MeasurementInterrupted", "SessionInstrument", "energy_note"]

_NEEDED = frozenset({"build", "step", "timeline"})


class MeasurementInterrupted(KeyboardInterrupt):
    """Ctrl-C came while enough was measured already.

    Attributes:
        trace: what there is, marked partial.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace


class Instrument(Protocol):
    """Measures one step on one GPU at whatever clocks are in force."""

    @property
    def gpu(self) -> Gpu:
        """The GPU, for reading."""
        ...

    @property
    def workload(self) -> Mapping[str, Any]:
        """``name``, ``options`` and ``fingerprint``: what a resumed sweep must share."""
        ...

    def measure(self, folder: Path, *, sensed: bool = False) -> Trace:
        """Measure the step now.

        Args:
            folder: for raw files; it exists and is this measurement's alone.
            sensed: False: one pair row, the clocks in force, with the sensed clock, throttle
                reasons, temperature, step time and energy with spreads in `Trace.pairs`, and a
                time and energy with spread for each signature in `Trace.profile`. True: rows at
                the clocks that moved by themselves as well (provenance ``sensed``).

        Raises:
            WorkloadError: the step raised, changed its shape, or ran out of memory.
            DeviceError: the GPU cannot be read.
        """
        ...


class SessionInstrument:
    """A real GPU through `Session` and `assemble`: implements `Instrument`.

    Args:
        workload: what to build.
        gpu: the GPU, for reading.
        device: the same GPU as PyTorch names it.
        options: how much to measure each time.
        step: the step, if it is built already (a script's own).
        name: ``name``, ``options`` and ``fingerprint``, where there is no workload.
        on_part: called with each part's name as it begins.
    """

    def __init__(
        self,
        workload: Workload | None,
        gpu: Gpu,
        *,
        device: str = "cuda:0",
        options: MeasureOptions | None = None,
        step: Step | None = None,
        name: Mapping[str, Any] | None = None,
        on_part: Callable[[str], None] | None = None,
    ) -> None:
        self._workload, self._gpu, self._device = workload, gpu, device
        self._options, self._step = options, step
        self._on_part = on_part
        if name is None:
            assert workload is not None
            name = {
                "name": workload.spec,
                "options": dict(workload.options),
                "fingerprint": workload.fingerprint,
            }
        self._name = dict(name)

    @property
    def gpu(self) -> Gpu:
        """The GPU, for reading."""
        return self._gpu

    @property
    def workload(self) -> Mapping[str, Any]:
        """Name, options and fingerprint of the step."""
        return self._name

    def measure(self, folder: Path, *, sensed: bool = False) -> Trace:
        """See `Instrument.measure`; the step is built once and kept for the next time."""
        from .assemble import assemble
        from .session import Session

        session = Session(
            self._workload, self._gpu, folder, self._options, device=self._device, step=self._step
        )
        failure: BaseException | None = None
        with session:
            for name, part in session.parts():
                # Clocks that move by themselves are of use only where none is locked.
                if name == "ambient" and not sensed:
                    continue
                if self._on_part is not None:
                    self._on_part(name)
                failure = self._run(session, name, part)
                if failure is not None:
                    break
            self._step = session.step
        try:
            trace = assemble(folder, workload=self._name, gpu=self._gpu.info, sensed=sensed)
        except ClockwrightError:
            if failure is not None:
                raise failure from None
            raise
        finally:
            session.loops.clear()
            _free_memory()
        trace = replace(trace, notes=tuple(dict.fromkeys((*trace.notes, *energy_note(self._gpu)))))
        if isinstance(failure, KeyboardInterrupt):
            raise MeasurementInterrupted(trace)
        return trace

    def _run(self, session: Session, name: str, part: Callable[[], None]) -> BaseException | None:
        """Run a part; a failure of one that can be missed is kept in the record and returned."""
        try:
            part()
        except (Exception, KeyboardInterrupt) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            told = error if interrupted else _told(error, name, self._name["name"])
            if interrupted and name in _NEEDED:
                raise
            if name in _NEEDED:
                raise told from error
            why = f"interrupted in part {name!r} of the measurement" if interrupted else str(told)
            session.record["partial"] = why
            session.write()
            return told
        return None


def energy_note(gpu: Gpu) -> tuple[str, ...]:
    """What a reader must know of the energies, where the GPU has no counter."""
    if gpu.capabilities().energy_counter is Capability.YES:
        return ()
    return (
        f"{gpu.info.name} has no energy counter here: energies integrate its power readings "
        "(method power-integration), which are up to 100 ms old",
    )


def _told(error: BaseException, part: str, workload: str) -> ClockwrightError:
    if isinstance(error, ClockwrightError):
        return error
    line = " ".join(str(error).split())[:300] or type(error).__name__
    if type(error).__name__ == "OutOfMemoryError":
        return WorkloadError(
            f"workload {workload} ran out of GPU memory (in part {part!r} of the measurement): "
            f"{line}; use a smaller batch or fewer layers, or free the GPU of other processes"
        )
    return WorkloadError(f"workload {workload} failed in part {part!r} of the measurement: {line}")


def _free_memory() -> None:
    """Give back what the loops held, so that the next measurement has room."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
