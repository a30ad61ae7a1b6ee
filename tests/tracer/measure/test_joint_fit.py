"""Curves fitted together: the sparse equations against dense ones, and what more data does."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from clockwright.data.units import ClockPair
from clockwright.tracer.measure.clock_laws import PowerLaw, TimeLaw
from clockwright.tracer.measure.joint_fit import Prior, curvature, fit_jointly

NOISE = 0.01


class Line:
    """A level and a slope of each curve's own, one bend that all share: linear, so exact."""

    def __init__(self, at):
        self.at = np.asarray(at, dtype=float)
        self.own = Prior(np.array([0.0, 1.0]), np.array([2.0, 1.0]))
        self.shared = Prior(np.array([0.5]), np.array([1.5]))
        self.starts = [np.zeros(2), np.array([1.0, -1.0])]

    def values(self, own, shared, rows):
        x = self.at[rows]
        return own[:, [0]] + own[:, [1]] * x + shared[0] * x**2

    def dense(self, curves, rows):
        """All parameters in one vector: curves' own first, then the shared one."""
        design = np.zeros((curves * len(rows), 2 * curves + 1))
        for curve in range(curves):
            block = slice(curve * len(rows), (curve + 1) * len(rows))
            design[block, 2 * curve] = 1
            design[block, 2 * curve + 1] = self.at[rows]
            design[block, -1] = self.at[rows] ** 2
        return design


@st.composite
def lines(draw):
    size = draw(st.integers(3, 9))
    curves = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    law = Line(np.sort(rng.uniform(-1, 1, size)))
    rows = np.sort(rng.choice(size, draw(st.integers(1, size)), replace=False))
    own, shared = rng.normal(0, 1, (curves, 2)), rng.normal(0, 1, 1)
    values = law.values(own, shared, rows) + rng.normal(0, NOISE, (curves, len(rows)))
    return law, values, rows


@settings(max_examples=60, deadline=None)
@given(lines())
def test_a_fit_is_the_most_probable_one(case):
    law, values, rows = case
    fit = fit_jointly(law, values, rows, NOISE)

    def objective(flat):
        own, shared = flat[:-1].reshape(-1, 2), flat[-1:]
        gap = (law.values(own, shared, rows) - values) / NOISE
        prior = ((own - law.own.mean) / law.own.sd) ** 2
        return (
            0.5 * 8 * np.log1p(gap**2 / 8).sum()
            + 0.5 * prior.sum()
            + 0.5 * (((shared - law.shared.mean) / law.shared.sd) ** 2).sum()
        )

    start = np.append(fit.own.ravel(), fit.shared)
    best = minimize(objective, start, method="BFGS").fun
    assert objective(start) <= best * (1 + 1e-4) + 1e-6


@settings(max_examples=60, deadline=None)
@given(lines())
def test_the_variance_is_that_of_the_dense_normal_equations(case):
    law, _, rows = case
    # Values on the curve: no weight but one, so that the dense equations are plain.
    own, shared = np.ones((4, 2)), np.array([0.3])
    values = law.values(own, shared, rows)
    fit = type(fit_jointly(law, values, rows, NOISE))(own, shared)
    found = curvature(law, fit, values, rows, NOISE, pairs=len(law.at)).variance()
    design = law.dense(4, rows) / NOISE
    sd = np.append(np.tile(law.own.sd, 4), law.shared.sd)
    covariance = np.linalg.inv(design.T @ design + np.diag(sd**-2))
    everywhere = law.dense(4, np.arange(len(law.at)))
    wanted = np.einsum("ip,pq,iq->i", everywhere, covariance, everywhere).reshape(4, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(lines(), st.data())
def test_another_measured_pair_never_makes_less_sure(case, data):
    law, values, rows = case
    fit = fit_jointly(law, values, rows, NOISE)
    known = curvature(law, fit, values, rows, NOISE, pairs=len(law.at))
    row = data.draw(st.integers(0, len(law.at) - 1))
    before, after = known.variance(), known.with_pair(row, NOISE).variance()
    assert (after <= before * (1 + 1e-9)).all()
    assert (after[:, row] < before[:, row]).all()
    np.testing.assert_allclose(known.only(row).variance()[:, 0], before[:, row], rtol=1e-9)


def test_one_wild_value_does_not_carry_the_curve_away():
    law, rows = Line(np.linspace(-1, 1, 9)), np.arange(9)
    true = law.values(np.array([[0.5, 1.0]]), np.array([0.2]), rows)
    wild = true.copy()
    wild[0, 4] += 0.3
    fit = fit_jointly(law, wild, rows, NOISE)
    assert np.abs(law.values(fit.own, fit.shared, rows) - true).max() < 0.01


# --- the laws of time and power

PAIRS = [ClockPair(core, mem) for mem in (9000, 5000, 800) for core in range(300, 2001, 340)]
EVERY = np.arange(len(PAIRS))
own_time = st.tuples(*(st.floats(-3, 3) for _ in range(5))).map(lambda own: np.array([own]))


@settings(max_examples=80, deadline=None)
@given(own_time)
def test_no_kernel_gets_slower_by_a_higher_clock(own):
    law = TimeLaw(PAIRS)
    time = law.values(own, law.shared.mean, EVERY).reshape(3, -1)
    assert (np.diff(time, axis=1) <= 1e-9).all()  # core clock rises along a row
    assert (np.diff(time, axis=0) >= -1e-9).all()  # memory clock falls down the columns


@settings(max_examples=80, deadline=None)
@given(own_time)
def test_time_follows_a_clock_at_most_one_to_one(own):
    law = TimeLaw(PAIRS)
    time = law.values(own, law.shared.mean, EVERY).reshape(3, -1)
    core = np.log([pair.core_mhz for pair in PAIRS[:6]])
    assert (-np.diff(time, axis=1) <= np.diff(core) * (1 + 1e-9)).all()


def test_the_limits_of_time_are_those_of_the_roofline():
    law = TimeLaw(PAIRS)
    core = np.log([2000 / pair.core_mhz for pair in PAIRS])
    mem = np.log([9000 / pair.mem_mhz for pair in PAIRS])
    arithmetic = law.values(np.array([[0.0, -30, -30, 3, -30]]), law.shared.mean, EVERY)[0]
    waiting = law.values(np.array([[0.0, 30, -30, 3, -30]]), law.shared.mean, EVERY)[0]
    np.testing.assert_allclose(arithmetic - arithmetic.min(), core - core.min(), atol=1e-6)
    np.testing.assert_allclose(waiting - waiting.min(), mem, atol=1e-6)


@settings(max_examples=80, deadline=None)
@given(st.tuples(*(st.floats(-2, 2) for _ in range(4))), st.integers(0, 2**32 - 1))
def test_power_rises_with_both_clocks(own, seed):
    law = PowerLaw(PAIRS, np.zeros((1, len(PAIRS))))
    rng = np.random.default_rng(seed)
    shared = law.shared.mean.copy()
    shared[:10] += rng.uniform(-1, 1, 10) * law.shared.sd[:10]
    power = law.values(np.array([own]), shared, EVERY).reshape(3, -1)
    assert (np.diff(power, axis=1) >= 0).all()
    assert (np.diff(power, axis=0) <= 0).all()


def test_kernels_together_tell_what_one_alone_cannot():
    """A memory clock whose transfer rate is not its number's: seen by the kernels that wait."""
    law = TimeLaw(PAIRS)
    rng = np.random.default_rng(4)
    own = rng.normal(law.own.mean, law.own.sd / 2, (30, 5))
    shared = law.shared.mean + rng.normal(0, 1, len(law.shared.mean))
    time = law.values(own, shared, EVERY)
    rows = np.array([0, 5, 8, 12, 17])
    told = time[:, rows] + rng.normal(0, 0.002, (30, 5))

    def errors(some):
        fit = fit_jointly(law, told[some], rows, 0.002)
        return np.abs(law.values(fit.own, fit.shared, EVERY) - time[some]).mean(axis=1)

    together = errors(slice(None))
    alone = np.concatenate([errors(slice(kernel, kernel + 1)) for kernel in range(30)])
    assert together.mean() < 0.02
    assert together.mean() < 0.7 * alone.mean()
