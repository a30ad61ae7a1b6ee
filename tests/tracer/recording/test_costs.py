"""Energies of operators shared among the kernels they launch, and their times put together."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data.errors import DeviceError
from clockwright.tracer.measure.sensed_fit import MixFit, MixTimes
from clockwright.tracer.measure.timeline import Probes, StepTimeline
from clockwright.tracer.recording.costs import composed_time, share_operators

REFERENCE_MHZ = 1800.0
GEMM = ("gemm", "(8,1,1)", "(256,1,1)", 1024, 64, "aten::mm", "[[4, 4], [4, 4]]")
EPILOGUE = ("epilogue", "(2,1,1)", "(256,1,1)", 0, 32, "aten::mm", "[[4, 4], [4, 4]]")
COPY = ("copy", "(4,1,1)", "(128,1,1)", 0, 16, "aten::copy_", "[[4, 4], [4, 4]]")
LOST = ("custom", "(1,1,1)", "(32,1,1)", 0, 8, None, None)


def fit(operators=(0, 1)):
    """Operator 0 takes 9 mJ and grows with f^1, operator 1 takes 2 mJ and with f^0.5."""
    size = len(operators)
    return MixFit(
        operators=tuple(operators),
        reference_mhz=REFERENCE_MHZ,
        energy_mj=np.array([9.0, 2.0, 5.0])[:size],
        exponent=np.array([1.0, 0.5, 0.7])[:size],
        covariance=np.diag([0.01**2] * size + [0.1**2] * size),
        wait_power_w=(120.0, 0.5),
        temperature_per_c=0.0,
        temperature_c=55.0,
        residuals=np.zeros(4),
        range_mhz=(1450.0, 1980.0),
    )


def timeline(keys, order, duration_ns):
    """Two alike steps that launch ``keys[i]`` for each i of ``order``."""
    names = ["name", "grid", "block", "shared_bytes", "registers", "op", "shapes"]
    row = np.array([duration_ns[i] for i in order])
    start = np.cumsum(row + 1_000)
    return StepTimeline(
        signatures=pd.DataFrame([dict(zip(names, key, strict=True)) for key in keys]),
        kernels=pd.DataFrame({"signature": order}),
        start_ns=np.stack([start, start]),
        duration_ns=np.stack([row, row]),
        launch_ns=np.stack([start, start]),
        probes=Probes(*np.zeros((3, 0), np.int64)),
        odd=(),
        dropped={},
    )


LOOPS = [
    {"kernels": [[list(GEMM), 80_000.0], [list(EPILOGUE), 10_000.0]], "count": 2, "gap_ns": 500.0},
    {"kernels": [[list(COPY), 40_000.0]], "count": 1, "gap_ns": 800.0},
]
STEP = timeline([GEMM, EPILOGUE, COPY], [0, 1, 2, 0, 1], [80_000, 10_000, 40_000])


def test_kernels_of_one_operator_share_its_energy_by_their_time():
    found = share_operators(fit(), LOOPS, STEP)
    energy, error = found.at(REFERENCE_MHZ, 55.0)
    assert energy == pytest.approx([8.0, 1.0, 2.0])
    assert error == pytest.approx([0.01] * 3)
    assert found.count.tolist() == [2, 2, 1]
    assert found.count @ energy == pytest.approx(2 * 9.0 + 2.0)
    assert found.known_share == 1.0


@given(st.floats(1450, 1980), st.floats(1450, 1980))
def test_ratios_between_clocks_are_those_of_the_energies(core_mhz, to_mhz):
    found = share_operators(fit(), LOOPS, STEP)
    ratio, error = found.ratio(core_mhz, to_mhz)
    assert ratio == pytest.approx(found.at(core_mhz, 55.0)[0] / found.at(to_mhz, 55.0)[0])
    # The level's error is common to both clocks: only the exponent's is left.
    assert error == pytest.approx(0.1 * abs(np.log(core_mhz / to_mhz)))


def test_a_kernel_known_by_its_launch_alone_is_found():
    in_place = (*GEMM[:5], "aten::mm_", None)
    step = timeline([in_place, COPY], [0, 1], [80_000, 40_000])
    found = share_operators(fit(), LOOPS, step)
    assert [share.operator for share in found.shares] == [0, 1]
    assert found.at(REFERENCE_MHZ, 55.0)[0] == pytest.approx([8.0, 2.0])


def test_of_operators_with_one_launch_the_one_as_long_is_taken():
    loops = [*LOOPS, {"kernels": [[list(COPY), 90_000.0]], "count": 1, "gap_ns": 0.0}]
    for took_ns, operator in ((41_000, 1), (88_000, 2)):
        step = timeline([COPY], [0], [took_ns])
        (share,) = share_operators(fit((0, 1, 2)), loops, step).shares
        assert share.operator == operator


def test_an_operator_no_mix_held_gives_nothing():
    found = share_operators(fit((0,)), LOOPS, STEP)
    assert found.shares[2] is None
    assert found.known_share == pytest.approx(180 / 220)


def test_an_unknown_kernel_takes_the_others_mean_power_and_a_wide_error():
    step = timeline([GEMM, EPILOGUE, LOST], [0, 1, 2], [80_000, 10_000, 30_000])
    found = share_operators(fit(), LOOPS, step)
    energy, error = found.at(REFERENCE_MHZ, 55.0)
    assert found.known_share == pytest.approx(90 / 120)
    assert energy[2] == pytest.approx(9.0 * 30 / 90)  # 100 W, as the others draw
    assert error[2] > 10 * error[0]
    ratio, spread = found.ratio(1980.0, REFERENCE_MHZ)
    assert ratio[2] == pytest.approx(1.1**0.75)
    assert spread[2] == pytest.approx(0.25 * np.log(1.1))


def test_a_step_of_which_no_kernel_is_known_has_no_energies():
    with pytest.raises(DeviceError, match="launches any kernel of the step"):
        share_operators(fit(), LOOPS, timeline([LOST], [0], [30_000]))


def test_time_is_put_together_with_the_steps_gaps_for_the_loops_own():
    times = MixTimes(
        operators=(0, 1),
        reference_mhz=REFERENCE_MHZ,
        time_ns=np.array([91_000.0, 40_800.0]),
        exponent=np.array([-1.0, 0.0]),
        covariance=np.diag([0.01**2, 0.02**2, 0.0, 0.0]),
    )
    time_ns, error_ns = composed_time(times, LOOPS, REFERENCE_MHZ, gaps_ns=5_000.0)
    assert time_ns == pytest.approx(2 * 90_000 + 40_000 + 5_000)
    assert error_ns == pytest.approx(np.hypot(2 * 910, 816))
    slower, _ = composed_time(times, LOOPS, REFERENCE_MHZ / 2, gaps_ns=5_000.0)
    assert slower - time_ns == pytest.approx(2 * 91_000)
