"""A load held at its mean power heats and meters as the load itself."""

import pytest

from clockwright.data.units import ClockPair
from clockwright.tracer.gpu.simulated import Noise, open_simulated
from clockwright.tracer.simulated_runs import run_for
from clockwright.tracer.work import KernelWork, StepItem, StepWork

N = 2048
GEMM = KernelWork(
    "gemm", "aten::mm", f"[[{N}, {N}], [{N}, {N}]]", "bfloat16", 2 * N**3,
    2 * N**2 * 2, N**2 * 2, "tensor_16", N**2,
)  # fmt: skip
STEP = StepWork("step", (GEMM,), tuple(StepItem(0, "forward", "m", 0) for _ in range(2000)))
SPAN_NS = 20_000_000_000


def test_warming_in_strides_ends_where_playing_it_all_does():
    played, held = (open_simulated("rtx3080ti", noise=Noise.none()) for _ in range(2))
    for gpu in (played, held):
        gpu.lock(ClockPair(1500, 9501))
    while played.now_ns() < SPAN_NS:
        played.run(STEP)
    run_for(STEP, held, SPAN_NS)
    one, other = played.read(energy=False), held.read(energy=False)
    assert held.now_ns() == pytest.approx(played.now_ns(), rel=0.05)
    assert other.temperature_c == pytest.approx(one.temperature_c, abs=1)
    assert held.run(STEP).energy_mj == pytest.approx(played.run(STEP).energy_mj, rel=2e-3)


def test_time_energy_and_sensors_follow():
    gpu = open_simulated("h200", noise=Noise.none())
    gpu.run(STEP)
    before = gpu.read()
    gpu.hold(1_000_000_000, 500.0)
    after = gpu.read()
    assert after.power_w == pytest.approx(500, rel=0.02)
    assert after.energy_mj - before.energy_mj == pytest.approx(500_000, rel=0.15)
    gpu.hold(100_000_000_000, 100.0)
    assert gpu.read(energy=False).temperature_c < after.temperature_c - 5
