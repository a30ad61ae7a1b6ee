"""Spins of known length tell the clock, whatever their overhead."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.tracer.measure.sensing import (
    LONG_CYCLES,
    SHORT_CYCLES,
    clock_from_pair_mhz,
    clocks_at,
    make_spin_mode,
    overhead_cycles,
)
from clockwright.tracer.measure.timeline import Probes, StepTimeline


@given(st.floats(200, 3000), st.floats(0, 5000))
def test_two_lengths_cancel_the_overhead(clock_mhz, extra):
    short, long = (np.array([(c + extra) / clock_mhz * 1e3]) for c in (60_000, 260_000))
    found = clock_from_pair_mhz(short, long, 60_000, 260_000)
    assert found[0] == pytest.approx(clock_mhz, rel=1e-6)


def test_a_longer_spin_that_took_less_tells_nothing():
    found = clock_from_pair_mhz(np.array([9.0, 5.0]), np.array([9.0, 4.0]), 10, 20)
    assert np.isnan(found).all()


@given(st.floats(500, 2500), st.floats(0, 3000), st.integers(4, 40))
def test_neighbours_tell_the_overhead(clock_mhz, extra, count):
    cycles = np.where(np.arange(count) % 2, LONG_CYCLES, SHORT_CYCLES)
    duration = (cycles + extra) / clock_mhz * 1e3
    assert overhead_cycles(duration, cycles) == pytest.approx(extra, rel=1e-6, abs=1e-3)


def test_spins_of_one_length_tell_no_overhead():
    assert overhead_cycles(np.full(5, 10.0), np.full(5, LONG_CYCLES)) == 0.0
    assert overhead_cycles(np.full(4, 10.0), np.array([6, 24, 6, 24])) == 0.0


def probed(clock_mhz, extra, *, steps=3, kernels=8, lengths=(SHORT_CYCLES, LONG_CYCLES)):
    """Steps whose kernels each have a probe before them; ``clock_mhz(step)`` holds for a step."""
    at, start, spins = 0, np.zeros((steps, kernels), np.int64), []
    for step in range(steps):
        for place in range(kernels):
            cycles = lengths[place % len(lengths)]
            duration = round((cycles + extra) / clock_mhz(step) * 1e3)
            spins.append((at, duration, step))
            at += duration + 1_000
            start[step, place] = at
            at += 50_000
    return StepTimeline(
        signatures=pd.DataFrame(),
        kernels=pd.DataFrame(),
        start_ns=start,
        duration_ns=np.full((steps, kernels), 49_000),
        launch_ns=start,
        probes=Probes(*np.array(spins).T),
        odd=(),
        dropped={},
    )


@given(st.floats(1000, 2000), st.floats(0, 2000))
def test_each_kernel_has_the_clock_of_its_step(clock_mhz, extra):
    found = clocks_at(probed(lambda step: clock_mhz * (1 + 0.1 * step), extra))
    for step, row in enumerate(found):
        # Durations are whole ns: 1 in 3,000 of the shortest.
        assert row == pytest.approx(clock_mhz * (1 + 0.1 * step), rel=3e-3)


def test_clocks_within_a_step_are_followed():
    timeline = probed(lambda step: 1500.0, 150, kernels=40)
    probes = timeline.probes
    faster = np.linspace(1.0, 1.2, 40)
    row = probes.step == 0
    probes.duration_ns[row] = np.round(probes.duration_ns[row] / faster)
    found = clocks_at(timeline)
    assert found[0] == pytest.approx(1500 * faster, rel=0.02)
    assert found[1] == pytest.approx(1500, rel=3e-3)


@pytest.mark.parametrize("wild", [0, 1, 6])
def test_one_disturbed_probe_changes_nothing(wild):
    timeline = probed(lambda step: 1600.0, 150)
    timeline.probes.duration_ns[wild] *= 8
    assert clocks_at(timeline) == pytest.approx(1600.0, rel=3e-3)


def test_probes_of_one_length_are_taken_for_long_ones():
    timeline = probed(lambda step: 1600.0, 0, lengths=(LONG_CYCLES,))
    assert clocks_at(timeline) == pytest.approx(1600.0, rel=1e-3)


def test_a_step_without_a_probe_has_no_clock():
    timeline = probed(lambda step: 1600.0, 150)
    timeline.probes.step[timeline.probes.step == 1] = 0
    found = clocks_at(timeline)
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


def test_every_few_operators_a_spin_is_launched_short_and_long_by_turns(monkeypatch):
    import torch

    spun = []
    monkeypatch.setattr("clockwright.tracer.measure.sensing.spin", spun.append)
    x = torch.ones(3)
    with make_spin_mode(2) as mode:
        for _ in range(7):
            x = x + 1
    assert spun == [SHORT_CYCLES, LONG_CYCLES, SHORT_CYCLES, LONG_CYCLES]
    assert (mode.seen, mode.probes) == (7, 4)
    assert x.tolist() == [8.0] * 3
