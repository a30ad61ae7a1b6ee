"""What is mixed with what: every operator alone, the large ones at other clocks too."""

from types import SimpleNamespace

import numpy as np
import pytest

from clockwright.tracer.gpu.energy import EnergyMethod
from clockwright.tracer.measure import mixes
from clockwright.tracer.measure.mixes import (
    MixPlan,
    _interleaved,
    plan_mixes,
    run_mix,
    run_repeated,
)
from clockwright.tracer.measure.window import Window

REPLAY_NS = [7e5, 2e6, None, 1e5, 5e4]
WEIGHTS = [0.5, 0.3, 0.0, 0.2, 1e-5]


def plans(**options):
    return plan_mixes(REPLAY_NS, WEIGHTS, heavy=0, **options)


def test_every_operator_is_measured_alone_and_first():
    found = plans()
    alone = [plan for plan in found if plan.kind == "alone"]
    assert sorted(next(iter(plan.loops)) for plan in alone) == [0, 1, 3, 4]
    assert {plan.kind for plan in found[:5]} == {"alone", "wait"}


def test_minor_operators_are_measured_alone_only():
    kinds = {plan.kind for plan in plans() if 4 in plan.loops}
    assert kinds == {"alone"}


def test_large_ones_run_beside_a_hungrier_and_a_waiting_one():
    kinds = [plan.kind for plan in plans(step_like=0) if 1 in plan.loops]
    assert sorted(kinds) == ["alone", "heavy", "light"]


def test_an_operator_without_a_graph_is_in_no_mix():
    assert all(2 not in plan.loops for plan in plans())


def test_equal_seeds_plan_alike():
    assert plans(seed=3) == plans(seed=3)
    assert plans(seed=3) != plans(seed=4)


def test_a_sequence_is_spread_evenly():
    order = _interleaved(MixPlan("light", {7: 4}, waits=2))
    assert sorted(order) == [-1, -1, 7, 7, 7, 7]
    assert order not in ([7, 7, 7, 7, -1, -1], [-1, -1, 7, 7, 7, 7])


class Queue:
    """One stream of a made-up GPU at one clock: work is queued at once and takes its time."""

    def __init__(self, clock_mhz, overhead_cycles=400):
        self.clock_mhz, self.overhead_cycles = clock_mhz, overhead_cycles
        self.host_ns = self.free_ns = 0
        self.asked = []

    def now_ns(self):
        self.host_ns += 1_000
        return self.host_ns

    def run(self, duration_ns):
        self.free_ns = max(self.free_ns, self.host_ns) + duration_ns

    def spin(self, cycles):
        self.run((cycles + self.overhead_cycles) / self.clock_mhz * 1e3)

    def mark(self):
        at_ns = self.free_ns

        def synchronize():
            self.host_ns = max(self.host_ns, int(at_ns))

        return SimpleNamespace(at_ns=at_ns, synchronize=synchronize)

    def window(self, from_ns, to_ns):
        self.asked.append((from_ns, to_ns))
        return Window(
            500.0, 1.0, EnergyMethod.COUNTER, self.clock_mhz, 3201, 55.0, 0.1, 4, 9, to_ns - from_ns
        )


@pytest.fixture
def queue(monkeypatch):
    made = Queue(1600.0)
    monkeypatch.setattr(mixes, "spin", made.spin)
    monkeypatch.setattr(mixes, "mark", made.mark)
    monkeypatch.setattr(mixes, "between_ns", lambda begin, end: end.at_ns - begin.at_ns)
    return made


def test_a_mix_is_timed_sensed_and_counted_after_it_settled(queue):
    loops = [
        SimpleNamespace(graph=SimpleNamespace(replay=lambda ns=ns: queue.run(ns)), calls=calls)
        for ns, calls in ((700_000, 8), (300_000, 64))
    ]
    plan = MixPlan("light", {0: 3, 1: 2}, 2)
    result = run_mix(plan, loops, queue, queue, seconds=1.0, settle_s=0.5)
    assert result.calls == {0: 24, 1: 128}
    # Every spin takes some cycles beyond those asked for: four of them, two waits and two probes.
    took_ns = 3 * 700_000 + 2 * 300_000 + (result.wait_cycles + 4 * 400) / 1600.0 * 1e3
    assert result.time_ns == pytest.approx(took_ns, rel=1e-3)
    assert result.sensed_mhz == pytest.approx(1600.0, rel=1e-6)
    assert result.energy_mj == pytest.approx(500.0 * result.time_ns * 1e-6)
    ((from_ns, to_ns),) = queue.asked
    assert 500e6 <= from_ns < 520e6 and 1_500e6 <= to_ns < 1_530e6
    record = result.as_record()
    assert record["window"]["method"] == "counter" and record["plan"]["kind"] == "light"


def test_replays_longer_than_a_sequence_leave_no_mix_empty():
    found = plan_mixes([9e7, 8e7], [0.5, 0.5], heavy=0)
    assert all(plan.loops for plan in found if plan.kind != "wait")


@pytest.mark.parametrize("waits_for_its_loss", [False, True])
@pytest.mark.parametrize("step_ms", [40, 1500, 4000])
@pytest.mark.parametrize("probe", [False, True])
def test_steps_are_timed_however_long_and_whoever_waits(queue, step_ms, waits_for_its_loss, probe):
    def step():
        queue.run(step_ms * 1e6)
        if waits_for_its_loss:
            queue.host_ns = max(queue.host_ns, int(queue.free_ns))

    times, clocks, window = run_repeated(step, queue, queue, seconds=2.5, settle_s=1.0, probe=probe)
    probes_ns = (60_000 + 260_000 + 2 * 400) / 1600.0 * 1e3 if probe else 0.0
    assert len(times) >= 2
    assert times == pytest.approx(step_ms * 1e6 + probes_ns, rel=1e-3)
    # The energy is counted over the time that was timed.
    assert window.duration_ns == pytest.approx(times.sum(), rel=1e-3)
    assert np.isfinite(clocks).all() == probe
    if probe:
        assert clocks == pytest.approx(1600.0, rel=1e-6)
