"""Who writes a sequence number into the shared page: the host, or the stream in its own order.

A `StreamWriter` enqueues the write on the current CUDA stream, so that it happens after the kernels
launched before it and before those launched after; during a graph capture it becomes a node. A
`HostWriter` writes at once, which is right where the host itself does the work (a simulated GPU
beside a CPU step).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from ...tracer.clocks import ClockKeeper, TriggerPage
from ...tracer.gpu.protocol import Gpu

if TYPE_CHECKING:
    from .cuda_driver import CudaDriver

__all__ = ["HostWriter", "SideStreamWriter", "StreamWriter", "Writer"]


class Writer(Protocol):
    """Writes sequence numbers for the keeper to follow."""

    def write(self, sequence: int) -> None:
        """Write a number, in the order of the work around it."""
        ...

    def close(self) -> None:
        """Let the page go."""
        ...


class HostWriter:
    """Writes at once, and has the keeper look (`LocalKeeper` does not look by itself).

    Args:
        page: the shared page.
        keeper: who follows it.
        simulated: the simulated GPU, whose virtual time is moved on by the host's between writes.
    """

    def __init__(
        self, page: TriggerPage, keeper: ClockKeeper, simulated: Gpu | None = None
    ) -> None:
        self._page, self._keeper, self._simulated = page, keeper, simulated
        self._last_ns = time.monotonic_ns()

    def write(self, sequence: int) -> None:
        """Write now; the keeper has followed when this returns."""
        now_ns = time.monotonic_ns()
        if self._simulated is not None:
            self._simulated.sleep_ns(now_ns - self._last_ns)
        self._last_ns = now_ns
        self._page.sequence = sequence
        self._keeper.poll()

    def close(self) -> None:
        """Nothing was registered."""


class StreamWriter:
    """Writes on the current CUDA stream. Use as a context manager, or call `close`.

    Args:
        page: the shared page; registered with CUDA until `close`,
            if nobody else had done so.
        driver: the CUDA driver library.
        stream: gives the stream's handle at each write; by default PyTorch's current stream of
            ``device``.
        device: the GPU's number in CUDA; the current one if None.

    Raises:
        DeviceError: the driver refused to map the page.
    """

    def __init__(
        self,
        page: TriggerPage,
        driver: CudaDriver,
        stream: Callable[[], int] | None = None,
        device: int | None = None,
    ) -> None:
        self._driver, self._page = driver, page
        self._stream = partial(_current_stream, device) if stream is None else stream
        self._registered = driver.register_host_memory(page.address, page.size_bytes)
        mapped = driver.device_pointer(page.address)
        self.sequence_pointer = mapped + (page.sequence_address - page.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, sequence: int) -> None:
        """Enqueue the write on the current stream.

        Raises:
            DeviceError: the driver refused.
        """
        self._driver.stream_write_value(self._stream(), self.sequence_pointer, sequence)

    def close(self) -> None:
        """Wait for writes still in a stream and take the page back from CUDA. Safe to repeat.

        A graph captured meanwhile holds writes to the page and must not be launched any more.
        """
        if self._registered:
            self._registered = False
            self._driver.synchronize()
            self._driver.unregister_host_memory(self._page.address)


class SideStreamWriter(StreamWriter):
    """Writes on a stream of its own, once what the current stream holds so far has ended.

    Kernels launched after the write do not wait for it. Writes keep their order.

    Args:
        page: the page to write to.
        driver: the CUDA driver.
        device: number of the GPU whose current stream is followed; by default the current one.
    """

    def __init__(self, page: TriggerPage, driver: CudaDriver, *, device: int | None = None) -> None:
        import torch

        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        super().__init__(page, driver, stream=lambda: int(self._side.cuda_stream))

    def write(self, sequence: int) -> None:
        """Enqueue the write behind the current stream's work.

        Raises:
            DeviceError: the driver refused.
        """
        # What waits has taken note of the event's record before the next one, so one event does.
        import torch

        self._event.record(torch.cuda.current_stream(self._device))
        self._side.wait_event(self._event)
        super().write(sequence)


def _current_stream(device: int | None) -> int:
    import torch

    # The raw handle, without making a Stream object at each of some hundred triggers a second.
    number = torch.cuda.current_device() if device is None else device
    handle: int = torch._C._cuda_getCurrentRawStream(number)
    return handle
