"""Responses to the clock from profiles, and how well the profiles foretell one another."""

import pytest

from clockwright.tracer.measure.timeline import read_timeline
from clockwright.tracer.recording.responses import fit_responses
from tests.tracer.recording.folders import CLOCK_MHZ, SLOPE, profile, step_us

CLOCKS = (1500.0, 1600.0, 1700.0, 1850.0, 1950.0)


@pytest.fixture
def base(tmp_path):
    return read_timeline(profile(tmp_path / "base.json", [CLOCK_MHZ] * 3))


def profiles(folder, clocks=CLOCKS):
    made = []
    for clock in clocks:
        path = profile(folder / f"{clock:.0f}.json", [clock, clock + 5, clock + 10], probes=True)
        made.append((f"at {clock:.0f}", read_timeline(path)))
    return made


def slower(timeline, factor):
    """The same step whose kernels take longer although the clock is the same."""
    object.__setattr__(timeline, "duration_ns", (timeline.duration_ns * factor).astype("int64"))
    return timeline


def test_each_kernels_slope_is_found(base, tmp_path):
    found = fit_responses(base, profiles(tmp_path))
    for name, response in zip(base.signatures["name"], found.each, strict=True):
        assert response.exponent == pytest.approx(SLOPE[name], abs=0.02)


def test_the_clock_of_a_step_without_probes_is_told_by_its_kernel_time(base, tmp_path):
    found = fit_responses(base, profiles(tmp_path))
    for clock in (1550.0, 1900.0):
        step = read_timeline(profile(tmp_path / "step.json", [clock] * 2))
        assert found.clock_of(float(step.busy_ns.mean())) == pytest.approx(clock, rel=5e-3)
    assert found.clock_of(1e3 * step_us(100.0)) < CLOCKS[0]  # no extrapolation without end


def test_profiles_that_follow_the_clock_alone_foretell_one_another(base, tmp_path):
    found = fit_responses(base, profiles(tmp_path))
    assert set(found.held_out) == {f"at {clock:.0f}" for clock in CLOCKS}
    assert max(abs(error) for error in found.held_out.values()) < 5e-3


def test_a_profile_slow_for_another_reason_than_its_clock_is_told(base, tmp_path):
    made = profiles(tmp_path)
    slower(made[2][1], 1.03)
    found = fit_responses(base, made)
    assert found.held_out["at 1700"] == pytest.approx(-0.03, abs=0.006)
    (note,) = found.held_out_notes()
    assert f"{found.held_out['at 1700']:+.1%}" in note


def test_two_profiles_cannot_foretell_one_another(base, tmp_path):
    found = fit_responses(base, profiles(tmp_path, CLOCKS[:2]))
    assert found.held_out == {} and found.held_out_notes() == ()


def test_a_profile_without_probes_is_left_out_and_named(base, tmp_path):
    made = profiles(tmp_path)
    made.append(("bare", read_timeline(profile(tmp_path / "bare.json", [1700.0] * 2))))
    found = fit_responses(base, made)
    assert found.left_out == ("the profile 'bare' holds no probe",)
    assert "bare" not in found.held_out
    assert fit_responses(base, made[-1:]) is None
