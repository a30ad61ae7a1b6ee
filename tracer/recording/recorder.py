"""Tracing from within a script: a few lines around the user's own training loop.

::

    with clockwright.trace("T", gpu="nvml:0", model=model, optimizer=optimizer) as recorder:
        for batch in loader:
            recorder.step(lambda: train_step(batch))
            if recorder.done:
                break

Each `Recorder.step` runs the step once, as the loop would. After a few such steps it is measured:
on a real GPU the same step is then run many times over (a minute or more), so its weights go on
being trained on that one batch; trace a copy, or load a checkpoint afterwards. On a simulated GPU
it runs once more, on whatever device the model is, and only its operators are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ...data import trace as trace_file
from ...data.errors import InputError, WorkloadError
from ...data.trace import Trace
from ...data.units import ClockPair, parse_pair
from ..gpu.protocol import Gpu
from ..gpu.select import open_gpu
from .instrument import Instrument, SessionInstrument
from .locked_sweep import SweepOptions
from .record import check_request, cuda_device, how_much, record, refuse_busy

if TYPE_CHECKING:
    import torch

    from ..work import StepWork

__all__ = ["Recorder", "trace"]

_T = TypeVar("_T")


class Recorder:
    """Records one step of a loop; see `trace`. Use as a context manager.

    Attributes:
        trace: what was recorded, once `done`.
    """

    def __init__(
        self,
        output: Path,
        *,
        gpu: str,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        name: str,
        set_clocks: bool,
        sweep: SweepOptions,
        warm_up: int,
        seed: int,
    ) -> None:
        self.trace: Trace | None = None
        self._output, self._spec = output, gpu
        self._model, self._optimizer, self._name = model, optimizer, name
        self._set_clocks, self._sweep = set_clocks, sweep
        self._warm_up, self._seed = warm_up, seed
        self._gpu: Gpu | None = None
        self._calls = 0
        self._last: Callable[[], object] | None = None

    @property
    def done(self) -> bool:
        """True once the step is recorded; `step` then only runs what it is given."""
        return self.trace is not None

    def __enter__(self) -> Self:
        gpu = open_gpu(self._spec, seed=self._seed if self._is_simulated else None)
        try:
            if not self._is_simulated:
                check_request(
                    self._output, set_clocks=self._set_clocks, sweep=self._sweep, switches=False
                )
                refuse_busy(gpu)
        except BaseException:
            gpu.close()
            raise
        self._gpu = gpu
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self.done:
                if self._last is None:
                    raise WorkloadError(
                        f"nothing was traced into {self._output}: call recorder.step(run) within "
                        "the with block, where run() does one step"
                    )
                self._record(self._last)
        finally:
            if self._gpu is not None:
                self._gpu.close()
                self._gpu = None

    def step(self, run: Callable[[], _T]) -> _T:
        """Run one step; once warm, record it as well.

        Args:
            run: does one whole step, and may be called again and again.

        Returns:
            What ``run`` returned.

        Raises:
            ClockwrightError: recording failed. What ``run`` raises passes through.
        """
        if self._gpu is None:
            raise InputError("a recorder works within its with block: with clockwright.trace(...)")
        result = run()
        self._last = run
        self._calls += 1
        if not self.done and self._calls >= self._warm_up:
            self._record(run)
        return result

    @property
    def _is_simulated(self) -> bool:
        return self._spec.strip().lower().startswith("sim")

    def _record(self, run: Callable[[], object]) -> None:
        from ..workloads.failures import guarded
        from ..workloads.step import Step

        device = str(self._device())
        step = Step(run=run, model=self._model, optimizer=self._optimizer, device=device)
        step = guarded(lambda: step, self._name)
        if self._is_simulated:
            self.trace = self._simulated(step)
            trace_file.write(self.trace, self._output)
            return
        assert self._gpu is not None
        instrument = self._instrument(self._gpu, step, device)
        self.trace = record(
            instrument, self._output, set_clocks=self._set_clocks, sweep=self._sweep
        )

    def _instrument(self, gpu: Gpu, step: Any, device: str) -> Instrument:
        name: dict[str, Any] = {"name": self._name, "options": {}, "fingerprint": None}
        options = how_much(set_clocks=self._set_clocks, deadline_s=self._sweep.deadline_s)
        return SessionInstrument(None, gpu, device=device, options=options, step=step, name=name)

    def _device(self) -> Any:
        if not self._is_simulated:
            return cuda_device(self._spec)
        parameter = next(iter(self._model.parameters()), None) if self._model is not None else None
        return "cpu" if parameter is None else parameter.device

    def _simulated(self, step: Any) -> Trace:
        from ..gpu.simulated import SimulatedGpu
        from ..record_simulated import record_simulated

        if not isinstance(self._gpu, SimulatedGpu):
            raise InputError(f"{self._spec} is not a simulated GPU that runs steps")
        return record_simulated(self._captured(step), self._gpu, pairs=self._sweep.pairs)

    def _captured(self, step: Any) -> StepWork:
        from dataclasses import replace

        from ..workloads.capture import recording

        with recording(step.model, on_cuda=step.device.startswith("cuda")) as recorded:
            step.run()
        work = recorded()
        if not work.items:
            raise WorkloadError(f"{self._name} launched no kernel; does its step do any work?")
        return replace(work, workload=self._name)


def trace(
    output: str | Path,
    *,
    gpu: str,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    name: str = "script",
    set_clocks: bool = False,
    pairs: Sequence[str | ClockPair] | None = None,
    exhaustive: bool = False,
    minutes: float | None = None,
    warm_up: int = 3,
    seed: int = 0,
) -> Recorder:
    """Trace a step of your own loop into a trace folder.

    Args:
        output: the trace folder to write.
        gpu: ``nvml:0``, ``nvml:GPU-...`` or ``sim:rtx3080ti``.
        model: the module whose paths name the kernels; None leaves modules unknown.
        optimizer: its optimizer.
        name: what the step is called in the trace.
        set_clocks: sweep locked clock pairs of a real GPU, through the clock keeper; otherwise
            nothing is set.
        pairs: visit these pairs and no others (``1410/9501``).
        exhaustive: measure every pair.
        minutes: begin nothing new so long after the start.
        warm_up: steps to run before the one that is recorded, that one included.
        seed: of a simulated GPU.

    Returns:
        A recorder, to be used in a ``with``.

    Raises:
        InputError: a pair that is no pair, or no warm-up.
        DeviceError: on entering: no such GPU, or others compute on it.
    """
    if warm_up < 1:
        raise InputError(f"warm_up must be at least 1, got {warm_up}")
    chosen = None
    if pairs is not None:
        chosen = [parse_pair(p) if isinstance(p, str) else p for p in pairs]
    sweep = SweepOptions(
        pairs=chosen,
        exhaustive=exhaustive,
        deadline_s=None if minutes is None else minutes * 60,
    )
    return Recorder(
        Path(output),
        gpu=gpu,
        model=model,
        optimizer=optimizer,
        name=name,
        set_clocks=set_clocks,
        sweep=sweep,
        warm_up=warm_up,
        seed=seed,
    )
