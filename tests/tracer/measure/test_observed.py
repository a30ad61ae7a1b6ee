"""A profiled step becomes a sequence of launches, whatever its times were."""

from __future__ import annotations

import pytest

from clockwright.data.errors import FormatError, WorkloadError
from clockwright.tracer.measure.observed import sequence_of_profile
from tests.tracer.importers.kineto_files import document, kernel


def _profile(folder, *kernels):
    path = folder / "step.json"
    path.write_text(document(*kernels))
    return path


def test_launches_are_compared_in_order_and_not_by_their_times(tmp_path):
    one = _profile(tmp_path, kernel("a", "10.000"), kernel("b", "20.000"), kernel("a", "30.000"))
    seen = sequence_of_profile(one)
    assert len(seen) == 3
    assert seen.order[0] == seen.order[2] != seen.order[1]
    later = _profile(tmp_path, kernel("a", "11.000"), kernel("b", "40.000"), kernel("a", "90.000"))
    assert sequence_of_profile(later).fingerprint == seen.fingerprint
    other = _profile(tmp_path, kernel("b", "11.000"), kernel("a", "40.000"), kernel("a", "90.000"))
    assert sequence_of_profile(other).fingerprint != seen.fingerprint


def test_a_profile_of_several_gpus_is_refused(tmp_path):
    both = _profile(tmp_path, kernel("a", device=0), kernel("a", "30.000", pid=1, device=1))
    with pytest.raises(WorkloadError, match="2 GPUs; expected one"):
        sequence_of_profile(both)


def test_a_profile_without_kernels_is_refused(tmp_path):
    with pytest.raises(FormatError):
        sequence_of_profile(_profile(tmp_path))
