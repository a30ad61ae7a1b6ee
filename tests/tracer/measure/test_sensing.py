"""Spins of known length tell the clock, whatever their overhead."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.tracer.measure.sensing import (
    LONG_CYCLES,
    SHORT_CYCLES,
    clock_from_pair_mhz,
    overhead_cycles,
)


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
