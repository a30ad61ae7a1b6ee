"""A real NvmlGpu over the fake driver whose time moves only when somebody sleeps."""

from __future__ import annotations

from clockwright.tracer.gpu.nvml import NvmlGpu
from tests.fake_nvml.driver import FakeNvml


class SteppedGpu(NvmlGpu):
    """`now_ns` and the driver's own clock are one hand-moved clock, so waits are exact."""

    def __init__(self, fake: FakeNvml, index: int = 0, *, allow_set: bool = False) -> None:
        self._fake, self._since_ns = fake, 0
        fake.set_time_ns(0)
        super().__init__(fake.gpu(index).uuid, allow_set=allow_set)

    def now_ns(self) -> int:
        return self._fake.state.epoch_ns + self._since_ns

    def sleep_ns(self, duration_ns: int) -> None:
        self._since_ns += max(0, duration_ns)
        self._fake.set_time_ns(self._since_ns)
