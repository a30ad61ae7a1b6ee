"""Switch latencies come out as the GPU was built, and a clock that never arrives is named."""

import numpy as np
import pytest

from clockwright.data.errors import InputError, LockNotHeldError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.gpu.simulated import Faults, SwitchBehaviour, open_simulated
from clockwright.tracer.measure.spin_bench import CudaProbes, SpinSwitchBench
from clockwright.tracer.measure.switch_benches import ReportedClockBench, SimulatedSwitchBench
from clockwright.tracer.measure.switching import Observation, arrival, measure_switches

HIGH, LOW, LOW_MEM = ClockPair(1800, 9501), ClockPair(900, 9501), ClockPair(1800, 5001)
BOTH = ClockPair(900, 5001)
TRANSITIONS = [(HIGH, LOW), (LOW, HIGH), (HIGH, LOW_MEM), (LOW_MEM, HIGH), (HIGH, BOTH)]


@pytest.mark.parametrize("kind", ["lag", "stall"])
@pytest.mark.parametrize("core_ns", [1.0e6, 4.0e6])
def test_known_latencies_are_found_within_five_percent(kind, core_ns):
    behaviour = SwitchBehaviour(kind=kind, core_ns=core_ns, mem_ns=2.5 * core_ns, spread=0.05)
    gpu = open_simulated("rtx3080ti", seed=1, switch=behaviour)
    table = measure_switches(SimulatedSwitchBench(gpu), TRANSITIONS, repeats=9)
    assert len(table) == len(TRANSITIONS)
    for (before, after), row in zip(TRANSITIONS, table.itertuples(), strict=True):
        truth_ns, _ = gpu.switch_truth(before, after)
        assert row.latency_ns_p50 == pytest.approx(truth_ns, rel=0.05)
        assert row.latency_ns_p5 <= row.latency_ns_p50 <= row.latency_ns_p99
        if kind == "stall":
            assert row.stall_ns == pytest.approx(truth_ns, rel=0.05)
        else:
            assert row.stall_ns < 0.05 * truth_ns
    assert set(table["provenance"]) == {"simulated"}


def test_late_switches_show_in_the_upper_quantiles_and_not_in_the_median():
    behaviour = SwitchBehaviour(
        kind="lag", core_ns=1e6, mem_ns=0, late_probability=0.2, late_ns=5e6
    )
    gpu = open_simulated("v100", seed=2, switch=behaviour)
    pairs = [(ClockPair(1380, 877), ClockPair(900, 877))]
    row = measure_switches(SimulatedSwitchBench(gpu), pairs, repeats=40).iloc[0]
    assert row["latency_ns_p50"] == pytest.approx(1e6, rel=0.05)
    assert row["latency_ns_p99"] == pytest.approx(6e6, rel=0.05)


def test_a_lock_that_does_not_hold_is_named_with_its_pair():
    gpu = open_simulated("rtx3080ti", faults=Faults(locks_hold=False))
    table = measure_switches(SimulatedSwitchBench(gpu), [(HIGH, LOW)], repeats=1)
    assert len(table) == 0  # nothing ever changed, so no probe can tell the two apart


def test_a_clock_that_stops_arriving_is_an_error():
    class Stuck(SimulatedSwitchBench):
        def probe(self, window_ns):
            steady_ns = 20_000 * 1e3 / 1800
            seen = super().probe(window_ns)
            return {
                name: (starts, np.full_like(starts, steady_ns))
                for name, (starts, _) in seen.items()
            }

    gpu = open_simulated("rtx3080ti")
    with pytest.raises(LockNotHeldError, match="900/9501 was requested"):
        measure_switches(Stuck(gpu), [(HIGH, LOW)], repeats=1, window_ns=10_000_000)


def test_a_single_odd_probe_is_not_an_arrival():
    steady = {"spin_ns": np.full(20, 100.0)}, {"spin_ns": np.full(20, 200.0)}
    value = np.array([100.0] * 5 + [210.0] + [100.0] * 5 + [200.0] * 5)
    start = np.concatenate([[0.0], np.cumsum(value)[:-1]])
    seen = Observation(0.0, 0.0, {"spin_ns": start}, {"spin_ns": value})
    assert arrival(seen, *steady).latency_ns == start[11]


def test_the_reported_clock_shows_a_lock_through_the_real_binding(fake_nvml):
    from clockwright.tracer.gpu.nvml import NvmlGpu

    listing = fake_nvml.gpu(0)
    with NvmlGpu(listing.uuid, allow_set=True) as gpu:
        cores = sorted({pair.core_mhz for pair in gpu.pairs()})
        mem = gpu.pairs()[0].mem_mhz
        low, high = ClockPair(cores[0], mem), ClockPair(cores[-1], mem)
        bench = ReportedClockBench(gpu, lock=gpu.lock, settle_ns=2_000_000)
        table = measure_switches(bench, [(high, low)], repeats=3, window_ns=5_000_000)
        gpu.release()
    assert len(table) == 1
    assert set(table["provenance"]) == {"measured"}
    assert listing.is_pristine


@pytest.mark.parametrize(
    ("transitions", "message"),
    [
        ([], "at least one"),
        ([(HIGH, HIGH)], "two different"),
        ([(GOVERNOR, HIGH)], "not a locked pair"),
    ],
)
def test_senseless_transitions_are_refused(transitions, message):
    with pytest.raises(InputError, match=message):
        measure_switches(SimulatedSwitchBench(open_simulated("rtx3080ti")), transitions)


class ClockProbes:
    """Kernels whose durations follow the clocks that a GPU reports; ``copy_ns`` the memory's."""

    def __init__(self, gpu):
        self.gpu = gpu

    def run(self, probe):
        reading = self.gpu.read(energy=False)
        mhz = reading.core_mhz if probe == "spin_ns" else reading.mem_mhz
        return float(reading.at_ns), 40_000 / mhz * 1e3


@pytest.fixture
def slow_driver(fake_nvml, tmp_path, monkeypatch):
    """A driver whose lock calls block for 3 ms and act 8 ms after they return."""
    monkeypatch.setenv("CLOCKWRIGHT_STATE", str(tmp_path / "state"))
    card = fake_nvml.gpu(0)
    card.set(lock_call_ns=3_000_000, settle_ns=8_000_000)
    return card


def test_kernels_see_a_switch_that_the_keeper_makes_when_it_takes_hold(slow_driver):
    from clockwright.tracer.clocks import KeeperClient, numbered
    from clockwright.tracer.gpu.nvml import NvmlGpu

    high, low, memory = ClockPair(1980, 3201), ClockPair(345, 3201), ClockPair(1980, 2201)
    with (
        NvmlGpu(slow_driver.uuid) as gpu,
        KeeperClient.start(socket="private", options=["--settle", "40ms"]) as keeper,
    ):
        keeper.acquire(gpu.info.uuid, numbered([high, low, memory]))
        bench = SpinSwitchBench(
            gpu, lock=keeper.lock, probes=ClockProbes(gpu), settle_ns=20_000_000
        )
        table = measure_switches(bench, [(high, low), (high, memory)], repeats=5)
    for row in table.itertuples():
        # 3 ms of call and 8 ms until the clock is there; when the driver's clock starts to count
        # and when a busy host looks add and take some.
        assert row.call_ns_p50 >= 3e6
        assert 8e6 <= row.latency_ns_p5 <= row.latency_ns_p50 < 60e6
    assert set(table["provenance"]) == {"measured"}
    assert slow_driver.is_pristine


def test_a_lock_that_is_refused_is_told_by_the_thread_that_asked(slow_driver):
    from clockwright.data.errors import RightsError
    from clockwright.tracer.gpu.nvml import NvmlGpu

    def refused(pair):
        raise RightsError("not allowed")

    with NvmlGpu(slow_driver.uuid) as gpu:
        bench = SpinSwitchBench(gpu, lock=refused, probes=ClockProbes(gpu))
        with pytest.raises(RightsError, match="not allowed"):
            bench.request(HIGH)


@pytest.mark.gpu
def test_on_a_real_gpu_spins_show_the_clock_that_the_driver_reports():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and a CUDA build of PyTorch")
    from clockwright.tracer.gpu.select import open_gpu

    gpu = open_gpu("nvml:0")
    probes = CudaProbes(gpu, "cuda:0")
    spins = np.array([probes.run("spin_ns") for _ in range(2000)])
    sensed = 40_000 / np.median(spins[-500:, 1]) * 1e3
    assert sensed == pytest.approx(gpu.read(energy=False).core_mhz, rel=0.25)
    assert (np.diff(spins[:, 0]) > 0).all()
    gpu.close()
