"""Playing a measured table: exact sums, switches between its own pairs, clear refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clockwright.data.errors import InputError, NotSupportedError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.gpu.protocol import Gpu
from clockwright.tracer.gpu.simulated import Noise, SwitchBehaviour, TablePlayer

PAIRS = (GOVERNOR, ClockPair(1500, None), ClockPair(900, None))
TIME_NS = np.array([[1e5, 1.1e5, 1.6e5], [4e5, 4.1e5, 4.2e5]])
ENERGY_MJ = np.array([[30.0, 24.0, 21.0], [90.0, 80.0, 60.0]])


def player(**kwargs):
    return TablePlayer(TIME_NS, ENERGY_MJ, PAIRS, **({"noise": Noise.none()} | kwargs))


@settings(max_examples=50, deadline=None)
@given(
    sequence=st.lists(st.integers(0, 1), min_size=1, max_size=60),
    rows=st.data(),
)
def test_with_free_switches_a_run_is_exactly_the_sum_of_its_cells(sequence, rows):
    chosen = rows.draw(st.lists(st.integers(0, 2), min_size=len(sequence), max_size=len(sequence)))
    gpu = player()
    requests = {item: PAIRS[row] for item, row in enumerate(chosen)}
    run = gpu.run(sequence, requests=requests)
    time_ns, energy_mj = gpu.truth(sequence, chosen)
    assert run.time_ns == round(time_ns)
    assert run.energy_mj == pytest.approx(energy_mj, rel=1e-9)
    assert run.pair_index.tolist() == chosen


def test_scale_multiplies_time_and_energy_of_a_launch():
    gpu = player()
    run = gpu.run([0, 1], scale=[2.0, 0.5])
    assert run.duration_ns.tolist() == [200_000, 200_000]
    assert run.energy_mj == pytest.approx(60.0 + 45.0)
    assert gpu.truth([0, 1], 0, scale=[2.0, 0.5]) == pytest.approx((400_000, 105.0))


def test_gaps_draw_idle_power_at_the_pair_held():
    gpu = player(idle_power_w=[100.0, 80.0, 60.0])
    assert gpu.run([0], gap_ns=1e6).energy_mj == pytest.approx(30.0 + 100.0)
    gpu.lock(PAIRS[2])
    assert gpu.run([0], gap_ns=1e6).energy_mj == pytest.approx(21.0 + 60.0)
    assert gpu.idle_power_w(PAIRS[1]) == 80.0


def test_idle_power_defaults_to_the_least_kernel_power():
    assert player().idle_power_w(PAIRS[2]) == pytest.approx(min(21.0 / 1.6e5, 60 / 4.2e5) * 1e6)


def test_release_returns_to_the_baseline_and_reports_the_governor_as_unknown_clocks():
    gpu = player()
    gpu.lock(PAIRS[1])
    assert gpu.run([0]).core_mhz.tolist() == [1500]
    gpu.release()
    run = gpu.run([0])
    assert run.pair_index.tolist() == [0]
    assert run.core_mhz.tolist() == [-1]
    gpu.sleep_ns(10**9)
    assert gpu.read().core_mhz is None


def test_stalls_are_charged_between_its_pairs():
    switch = SwitchBehaviour(kind="stall", core_ns=3e4, mem_ns=1e9, energy_mj=5.0)
    gpu = TablePlayer(
        TIME_NS[:, 1:], ENERGY_MJ[:, 1:], PAIRS[1:], switch=switch, noise=Noise.none(),
        idle_power_w=50.0,
    )  # fmt: skip
    run = gpu.run([0, 0], requests={1: PAIRS[2]})
    assert run.time_ns == 110_000 + 30_000 + 160_000
    assert run.energy_mj == pytest.approx(24.0 + 21.0 + 5.0 + 50.0 * 3e4 * 1e-6)


def test_it_is_a_gpu_without_a_power_limit():
    gpu = player()
    assert isinstance(gpu, Gpu)
    assert gpu.pairs() == PAIRS
    with pytest.raises(NotSupportedError):
        gpu.set_power_limit_w(100.0)


@pytest.mark.parametrize(
    ("time_ns", "energy_mj", "pairs", "message"),
    [
        (TIME_NS[:, :2], ENERGY_MJ, PAIRS, "3 pairs"),
        (TIME_NS, ENERGY_MJ, (PAIRS[0], PAIRS[1], PAIRS[1]), "twice"),
        (np.where(TIME_NS > 4.1e5, np.nan, TIME_NS), ENERGY_MJ, PAIRS, "signature 1 at 900/fixed"),
        (TIME_NS, -ENERGY_MJ, PAIRS, "every energy"),
        (np.zeros((0, 3)), np.zeros((0, 3)), PAIRS, "at least one signature"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(time_ns, energy_mj, pairs, message):
    with pytest.raises(InputError, match=message):
        TablePlayer(time_ns, energy_mj, pairs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence": [0, 2]}, r"0\.\.1"),
        ({"sequence": [0], "gap_ns": -1.0}, "gaps"),
        ({"sequence": [0], "scale": [1.0, 1.0]}, "scale"),
        ({"sequence": [0], "scale": [0.0]}, "over 0"),
        ({"sequence": [0], "requests": {0: ClockPair(1234, None)}}, "no pair 1234/fixed"),
    ],
)
def test_a_bad_run_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        player().run(**arguments)
