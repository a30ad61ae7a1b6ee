"""Pairs under the power cap: what the whole step takes there, and when they may be chosen."""

import dataclasses

import numpy as np
import pytest

from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.optimizer import solve
from clockwright.optimizer.baselines import BEST_SINGLE, PASS_LEVEL, compare
from clockwright.optimizer.capped import choosable
from clockwright.optimizer.from_trace import from_trace
from clockwright.optimizer.switch_model import ConstantStall, Free, Lag, TwoPartStall
from clockwright.tracer.gpu.simulated import Noise, open_simulated
from clockwright.tracer.record_simulated import record_simulated
from clockwright.tracer.work import KernelWork, StepItem, StepWork

N = 4096
GEMM = KernelWork(
    "gemm", "aten::mm", f"[[{N}, {N}], [{N}, {N}]]", "bfloat16", 2 * N**3,
    2 * N**2 * 2, N**2 * 2, "tensor_16", N**2,
)  # fmt: skip
COPY = KernelWork("copy", "aten::copy_", "[[33554432]]", "bfloat16", 0, 2**26, 2**26, "none", 2**25)
HIGH, HELD, LOW = ClockPair(1950, 9501), ClockPair(1500, 9501), ClockPair(1050, 9501)


@pytest.fixture(scope="module")
def trace():
    items = tuple(StepItem(i % 2, "forward", "m", 0) for i in range(40))
    gpu = open_simulated("rtx3080ti", noise=Noise.none())
    return record_simulated(
        StepWork("hot and cool", (GEMM, COPY), items), gpu, pairs=[HIGH, HELD, LOW]
    )


def column(step, pair):
    return step.problem.pairs.index(pair)


def test_the_cap_is_seen_and_cells_are_those_of_the_clock_asked_for(trace):
    step = from_trace(trace)
    assert step.capped.tolist() == [pair == HIGH for pair in step.problem.pairs]
    assert not step.unheld.any()
    gemm = trace.grid("duration_ns")[0]
    # Limited by the core clock, so its time goes with it, cap or no cap.
    assert gemm[2] / gemm[1] == pytest.approx(1950 / 1500, rel=0.03)
    sensed = trace.pairs["sensed_core_mhz"].iloc[1]
    assert sensed < 1900  # what the whole step ran at


@pytest.mark.parametrize(
    ("switch", "chosen"),
    [
        (Free(), True),
        (ConstantStall(2e4, 0.0), True),
        (TwoPartStall(2e4, 6e4, 0.0, 0.0), True),
        (ConstantStall(1e7, 0.0), False),
        (Lag(5e6, 0.0), False),
        (Lag(1e3, 2e7), False),
    ],
)
def test_capped_pairs_are_for_quick_switches_only(trace, switch, chosen):
    step = from_trace(trace, switch=switch)
    assert step.problem.allowed[column(step, HIGH)] == chosen
    assert step.problem.allowed[column(step, HELD)]
    assert not step.problem.allowed[column(step, GOVERNOR)]
    assert step.with_switch(Free()).problem.allowed[column(step, HIGH)]


def test_cells_measured_under_the_cap_are_never_chosen(trace):
    profile = trace.profile.copy()
    profile.loc[profile["pair"] == 1, "throttle_reasons"] = 4
    step = from_trace(dataclasses.replace(trace, profile=profile))
    assert step.unheld[column(step, HIGH)]
    assert not step.problem.allowed[column(step, HIGH)]
    assert any("left out" in note for note in step.notes)
    assert HIGH not in {step.problem.pairs[i] for i in solve(step.problem, 0.2).choice}


def test_a_capped_single_pair_costs_what_the_whole_step_took(trace):
    step = from_trace(trace)
    single = next(entry for entry in compare(step, 0.0) if entry.name == BEST_SINGLE)
    high = trace.pairs.iloc[1]
    assert single.pairs == (str(HIGH),)
    assert single.time_ns == high["step_time_ns"]
    assert single.energy_mj == high["step_energy_mj"]
    cells_mj = float(np.bincount(trace.timeline["signature"]) @ trace.grid("energy_mj")[:, 1])
    assert single.energy_mj < 0.97 * cells_mj


def test_pass_level_keeps_to_pairs_that_hold(trace):
    for entry in compare(from_trace(trace), 0.5):
        if entry.name == PASS_LEVEL:
            assert str(HIGH) not in entry.pairs[0]


def test_a_table_of_capped_pairs_alone_is_still_a_table():
    governor = np.array([True, False])
    capped = np.array([False, True])
    assert choosable(governor, capped, capped, Free()) is None
    assert choosable(governor, ~capped & ~governor, ~capped & ~governor, Free()) is None


def test_a_capped_pair_whose_whole_step_is_unknown_is_no_single_pair(trace):
    pairs = trace.pairs.copy()
    pairs.loc[pairs["pair"] == 1, ["step_time_ns", "step_energy_mj"]] = None
    step = from_trace(dataclasses.replace(trace, pairs=pairs))
    single = next(entry for entry in compare(step, 0.5) if entry.name == BEST_SINGLE)
    assert single.pairs != (str(HIGH),)
