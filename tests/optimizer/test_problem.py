"""What a problem refuses, in words, and the trivial answers it gives."""

from __future__ import annotations

import time

import numpy as np
import pytest

from clockwright.data.errors import InfeasibleError, InputError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.optimizer import (
    ConstantStall,
    Free,
    Lag,
    MatrixStall,
    Problem,
    SwitchModel,
    TwoPartStall,
    solve,
)

PAIRS = (ClockPair(2000, 9000), ClockPair(1500, 9000), ClockPair(1500, 5000))
SWITCHES = (Free(), ConstantStall(10.0, 1.0), TwoPartStall(5.0, 20.0), Lag(20.0, 50.0))


def problem(switch: SwitchModel = Free(), kernels: int = 4, **change: object) -> Problem:  # noqa: B008
    time_ns = np.array([[100.0, 110.0, 130.0], [200.0, 202.0, 260.0]])
    energy_mj = np.array([[10.0, 8.0, 7.0], [20.0, 15.0, 16.0]])
    given: dict[str, object] = {
        "pairs": PAIRS,
        "time_ns": time_ns,
        "energy_mj": energy_mj,
        "row": np.arange(kernels) % 2,
        "baseline_time_ns": 150.0 * kernels,
        "baseline_energy_mj": 15.0 * kernels,
        "switch": switch,
    }
    return Problem(**(given | change))  # type: ignore[arg-type]


def with_cell(name: str, value: float) -> dict[str, np.ndarray]:
    table = np.array(getattr(problem(), name))
    table[1, 2] = value
    return {name: table}


@pytest.mark.parametrize("name", ["time_ns", "energy_mj"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0])
def test_a_cell_that_is_no_cost_is_named(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name} must be finite.*at pair 1500/5000"):
        problem(**with_cell(name, value))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"row": np.empty(0, dtype=int)}, "step is empty"),
        ({"pairs": (), "time_ns": np.empty((2, 0)), "energy_mj": np.empty((2, 0))}, "got none"),
        ({"pairs": (PAIRS[0], PAIRS[0], PAIRS[1])}, "given twice"),
        ({"time_ns": np.ones((2, 2))}, "one column for each of the 3 pairs"),
        ({"energy_mj": np.ones((1, 3))}, "must have one shape"),
        ({"row": np.array([0, 2])}, "outside the 2 signatures"),
        ({"row": np.array([0.0, 1.0])}, "whole numbers"),
        ({"gap_ns": np.full(4, 5.0)}, "needs idle_power_w"),
        ({"time_scale": np.zeros(4)}, "must be finite and positive"),
        ({"baseline_time_ns": 0.0}, "baseline_time_ns must be finite and positive"),
        ({"baseline_energy_mj": np.nan}, "baseline_energy_mj must be finite and positive"),
        ({"allowed": np.zeros(3, dtype=bool)}, "at least one clock pair"),
        ({"boundary": np.ones(3, dtype=bool)}, "4 booleans"),
        ({"time_ns": np.full((2, 3), 1e18)}, "adds up to"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_the_reason(
    change: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        problem(**change)


def test_a_matrix_that_is_not_square_or_not_of_these_pairs_is_refused() -> None:
    with pytest.raises(InputError, match="square"):
        MatrixStall(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(InputError, match="from pair 0 to pair 1"):
        MatrixStall(np.array([[0.0, np.nan], [1.0, 0.0]]), np.zeros((2, 2)))
    with pytest.raises(InputError, match="from a pair to itself"):
        MatrixStall(np.ones((2, 2)), np.zeros((2, 2)))
    with pytest.raises(InputError, match="must be 3 x 3"):
        problem(MatrixStall(np.zeros((2, 2)), np.zeros((2, 2))))
    square = np.ones((3, 3)) - np.eye(3)
    unknown = (*PAIRS[:2], ClockPair(990, 9000))
    with pytest.raises(InputError, match="names pairs the problem does not have: 990/9000"):
        MatrixStall.from_pairs(unknown, square, square, PAIRS)
    with pytest.raises(InputError, match="lacks pairs: 1500/5000"):
        MatrixStall.from_pairs(PAIRS[:2], square[:2, :2], square[:2, :2], PAIRS)


@pytest.mark.parametrize("cost", [np.nan, np.inf, -1.0])
def test_a_switch_cost_that_is_none_is_refused(cost: float) -> None:
    for make in (ConstantStall, lambda x: TwoPartStall(1.0, x), Lag, lambda x: Lag(1.0, x)):
        with pytest.raises(InputError, match="finite and not negative"):
            make(cost)


@pytest.mark.parametrize("budget", [-0.01, np.nan, np.inf])
def test_a_budget_that_is_none_is_refused(budget: float) -> None:
    with pytest.raises(InputError, match="slowdown budget must be"):
        solve(problem(), budget)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"time_limit_s": 0.0}, "time_limit_s must be"),
        ({"time_limit_s": np.nan}, "time_limit_s must be"),
        ({"tolerance": -1e-9}, "tolerance must be"),
        ({"tolerance": 1.0}, "tolerance must be"),
        ({"method": "guess"}, "method must be one of"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        solve(problem(), 0.1, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: type(switch).__name__)
def test_one_kernel_takes_its_cheapest_pair_within_the_budget(switch: SwitchModel) -> None:
    one = problem(switch, 1, baseline_time_ns=100.0)
    assert solve(one, 0.0).choice.tolist() == [0]
    assert solve(one, 0.1).choice.tolist() == [1]
    found = solve(one, 0.5)
    assert found.choice.tolist() == [2]
    assert found.gap <= 1e-12
    assert found.n_switches == 0


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: type(switch).__name__)
def test_one_pair_is_the_answer_or_there_is_none(switch: SwitchModel) -> None:
    full = problem()
    one = problem(
        switch, pairs=PAIRS[:1], time_ns=full.time_ns[:, :1], energy_mj=full.energy_mj[:, :1]
    )
    found = solve(one, 0.0)
    assert found.choice.tolist() == [0] * 4
    assert found.energy_mj == 60.0
    with pytest.raises(InfeasibleError) as caught:
        solve(problem(switch, baseline_time_ns=500.0), 0.0)
    assert caught.value.least_slowdown == pytest.approx(0.2)


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: type(switch).__name__)
def test_budget_0_is_met_to_the_last_bit_by_the_baseline_itself(switch: SwitchModel) -> None:
    tenths = problem(switch, time_ns=np.array([[0.1, 0.2, 0.3], [0.7, 0.8, 0.9]]), kernels=10,
                     baseline_time_ns=4.0)  # fmt: skip
    found = solve(tenths, 0.0)
    assert found.choice.tolist() == [0] * 10
    assert found.time_ns == 4.0


def test_a_dwell_longer_than_the_step_leaves_one_pair() -> None:
    found = solve(problem(Lag(10.0, 1e6)), 0.05)
    assert found.n_switches == 0
    assert found.gap <= 1e-9
    assert len(set(found.choice.tolist())) == 1


def test_the_governor_is_no_pair_to_choose() -> None:
    with pytest.raises(InputError, match="the only one is the governor"):
        problem(pairs=(GOVERNOR,), time_ns=np.ones((2, 1)), energy_mj=np.ones((2, 1)))


def test_cells_of_nothing_are_solved() -> None:
    found = solve(problem(time_ns=np.zeros((2, 3)), energy_mj=np.zeros((2, 3))), 0.0)
    assert (found.energy_mj, found.gap) == (0.0, 0.0)


def large(switch: SwitchModel, kernels: int = 400, pairs: int = 60) -> Problem:
    rng = np.random.default_rng(11)
    slower = np.sort(rng.uniform(0, 0.5, (kernels, pairs)), axis=1)
    time_ns = rng.lognormal(10, 1.5, (kernels, 1)) * (1 + slower)
    energy_mj = time_ns * 250e-6 * (1 - 0.8 * slower + rng.normal(0, 0.05, slower.shape))
    return Problem(
        tuple(ClockPair(2000 - 20 * f, None) for f in range(pairs)),
        time_ns,
        energy_mj,
        np.arange(kernels),
        float(time_ns[:, 0].sum()),
        float(energy_mj[:, 0].sum()),
        switch=switch,
    )


@pytest.mark.parametrize("switch", [Free(), ConstantStall(2e4), TwoPartStall(2e4, 1e5)])
def test_equal_results_on_two_runs(switch: SwitchModel) -> None:
    first, second = (solve(large(switch), 0.02, tolerance=1e-4) for _ in range(2))
    assert first.choice.tolist() == second.choice.tolist()
    assert (first.energy_mj, first.lower_bound_mj, first.method) == (
        second.energy_mj,
        second.lower_bound_mj,
        second.method,
    )


@pytest.mark.parametrize("switch", [Free(), ConstantStall(2e4)])
@pytest.mark.parametrize("limit_s", [1e-3, 0.3])
def test_the_deadline_is_hard_and_the_gap_is_true(switch: SwitchModel, limit_s: float) -> None:
    long = large(switch, 6_000, 120)
    solve(long, 0.02, time_limit_s=limit_s)  # compiled, and its pages touched
    begin = time.monotonic()
    found = solve(long, 0.02, time_limit_s=limit_s, tolerance=0.0)
    assert time.monotonic() - begin < limit_s + 1.0
    assert found.time_ns <= long.budget_time_ns(0.02)
    assert found.lower_bound_mj <= solve(long, 0.02, tolerance=1e-4).energy_mj
