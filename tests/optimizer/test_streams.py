"""Streams that overlap: chain, slices and makespan agree with what a reader can draw."""

import numpy as np
import pytest

from clockwright.optimizer.from_trace import from_trace
from clockwright.optimizer.plan import played_cost, solve_step
from clockwright.optimizer.streams import lay_out
from clockwright.optimizer.switch_model import ConstantStall, Lag
from tests.optimizer.steps import PAIRS, make_trace


def layout(rows):
    start, duration, stream = (
        np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
    )
    return lay_out(start, duration, stream)


def random_layout(seed):
    rng = np.random.default_rng(seed)
    main = np.cumsum(rng.integers(1, 24, rng.integers(2, 25)))
    rows = [
        (int(s), int(rng.integers(1, 1 + d)), 0)
        for s, d in zip(main[:-1], np.diff(main), strict=True)
    ]
    rows += [
        (int(rng.integers(0, main[-1])), int(rng.integers(1, 50)), 1)
        for _ in range(rng.integers(0, 10))
    ]
    rows.sort()
    free = {0: -1, 1: -1}
    kept = []
    for start, duration, stream in rows or [(0, 5, 0)]:
        if start >= free[stream]:
            kept.append((start, duration, stream))
            free[stream] = start + duration
    return layout(kept or [(0, 5, 0)]), kept or [(0, 5, 0)]


def test_streams_that_take_turns_are_one_sequence():
    found = layout([(0, 10, 1), (10, 5, 2), (20, 5, 1)])
    assert found.serial
    assert found.chain.tolist() == [0, 1, 2]
    assert found.gap_ns.tolist() == [0.0, 0.0, 5.0]


def test_a_long_side_kernel_does_not_tie_the_main_stream_to_one_pair():
    found = layout([(0, 10, 0), (2, 26, 1), (10, 10, 0), (20, 10, 0)])
    assert found.chain.tolist() == [0, 2, 3]
    shares = [piece.share for k in range(3) for piece in found.pieces[k] if piece.kernel == 1]
    assert shares == pytest.approx([8 / 26, 10 / 26, 8 / 26])


def test_a_hole_of_the_main_stream_is_filled_by_another():
    found = layout([(0, 10, 0), (10, 6, 1), (16, 10, 0), (18, 3, 1)])
    assert found.chain.tolist() == [0, 1, 2]


def test_slack_beside_the_chain_is_used():
    # The side kernel may take twice its time before it is in anybody's way.
    found = layout([(0, 10, 0), (0, 5, 1), (10, 10, 0)])
    times = {0: 10.0, 1: 10.0, 2: 10.0}
    longest, chain = found.slice_times(0, lambda row: np.array([times[row]]))
    assert longest[0] == chain[0] == 10.0
    times[1] = 13.0
    assert found.slice_times(0, lambda row: np.array([times[row]]))[0][0] == 13.0


@pytest.mark.parametrize("seed", range(30))
def test_the_recorded_durations_play_back_to_the_recorded_span(seed):
    found, rows = random_layout(seed)
    span = max(s + d for s, d, _ in rows) - min(s for s, _, _ in rows)
    durations = np.array([d for _, d, _ in rows], dtype=float)
    k = len(found.chain)
    assert found.makespan_ns(lambda row, _: durations[row], [0] * k, [0.0] * k) == pytest.approx(
        span
    )
    total = found.gap_ns.sum() + sum(
        found.slice_times(i, lambda row: durations[[row]])[0][0]
        if i in found.pieces
        else durations[found.chain[i]]
        for i in range(k)
    )
    assert total == pytest.approx(span)


@pytest.mark.parametrize("seed", range(30))
def test_the_chain_alone_never_takes_longer_than_the_step(seed):
    found, rows = random_layout(seed)
    rng = np.random.default_rng(seed + 1000)
    table = np.array([d for _, d, _ in rows], float)[:, None] * rng.uniform(
        0.5, 2.5, (len(rows), 3)
    )
    choice = rng.integers(0, 3, len(found.chain))
    played = found.makespan_ns(lambda row, f: table[row, f], choice, np.zeros(len(choice)))
    alone = found.gap_ns.sum() + sum(
        found.slice_times(i, lambda row: table[row])[1][choice[i]]
        if i in found.pieces
        else table[found.chain[i], choice[i]]
        for i in range(len(choice))
    )
    assert alone <= played * (1 + 1e-9)


def test_a_stall_stops_every_stream():
    found = layout([(0, 10, 0), (0, 18, 1), (10, 10, 0)])
    durations = [10.0, 18.0, 10.0]
    assert found.makespan_ns(lambda row, _: durations[row], [0, 1], [0.0, 4.0]) == 24.0


def two_streams():
    time_ns = np.array([[1e4, 1e4, 1.4e4, 1.1e4], [2.5e4, 2.5e4, 2.6e4, 3.0e4]])
    energy_mj = time_ns * np.array([300.0, 280.0, 190.0, 220.0]) * 1e-6
    rows, starts, streams = [], [], []
    for block in range(6):
        begin = block * 30_000
        rows += [0, 1, 0, 0]
        starts += [begin, begin + 2_000, begin + 10_000, begin + 20_000]
        streams += [0, 1, 0, 0]
    return make_trace(time_ns, energy_mj, rows, PAIRS, starts=np.array(starts), streams=streams)


@pytest.mark.parametrize("switch", [ConstantStall(0.0), ConstantStall(500.0), Lag(3000.0, 0.0)])
@pytest.mark.parametrize("budget", [0.0, 0.02, 0.1])
def test_the_makespan_keeps_the_budget_and_the_bound_holds(budget, switch):
    step = from_trace(two_streams()).with_switch(switch)
    found = solve_step(step, budget, time_limit_s=10)
    limit_ns = step.problem.budget_time_ns(budget)
    assert played_cost(step, found.choice)[0] == found.time_ns <= limit_ns
    assert found.lower_bound_mj <= found.energy_mj
    rng = np.random.default_rng(0)
    allowed = np.flatnonzero(step.problem.allowed)
    for _ in range(200):
        other = rng.choice(allowed, len(found.choice)).astype(np.int32)
        time_ns, energy_mj = played_cost(step, other)
        if time_ns <= limit_ns:
            assert energy_mj >= found.lower_bound_mj * (1 - 1e-9)
