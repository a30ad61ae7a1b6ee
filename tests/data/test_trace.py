"""The trace folder: what is written is read back; what is broken is refused with its place."""

import contextlib
import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clockwright.data import trace as trace_file
from clockwright.data.errors import FormatError, InputError, VersionError
from tests.strategies import traces

SMALL = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@SMALL
@given(traces())
def test_a_trace_survives_being_written_and_read(tmp_path, trace):
    whole = trace.checked()
    shutil.rmtree(tmp_path / "T", ignore_errors=True)  # one folder for all examples
    trace_file.write(trace, tmp_path / "T")
    back = trace_file.read(tmp_path / "T")
    for table in ("timeline", "signatures", "pairs", "profile"):
        pd.testing.assert_frame_equal(getattr(back, table), getattr(whole, table))
    assert back.fingerprint == whole.fingerprint
    assert back.simulated == whole.simulated
    assert back.baseline == whole.baseline


@SMALL
@given(traces(), st.data())
def test_the_fingerprint_follows_the_sequence_and_not_the_times(trace, data):
    whole = trace.checked()
    slower = whole.timeline.assign(duration_ns=whole.timeline["duration_ns"] + 1)
    assert replace(whole, timeline=slower).fingerprint == whole.fingerprint
    row = data.draw(st.integers(0, len(whole.timeline) - 1))
    launches = whole.timeline["launches"].copy()
    launches.iloc[row] = 2
    changed = replace(whole, timeline=whole.timeline.assign(launches=launches))
    assert changed.fingerprint != whole.fingerprint


@pytest.fixture
def folder(tmp_path, small_trace):
    trace_file.write(small_trace, tmp_path / "T")
    return tmp_path / "T"


def test_an_unknown_version_is_refused_by_number(folder):
    meta = json.loads((folder / "trace.json").read_text())
    (folder / "trace.json").write_text(json.dumps({**meta, "version": 99}))
    with pytest.raises(VersionError, match="99"):
        trace_file.read(folder)


def test_a_cut_table_is_refused_by_name(folder):
    path = folder / "profile.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FormatError, match=r"profile\.parquet"):
        trace_file.read(folder)


def test_a_missing_table_is_refused_by_name(folder):
    (folder / "timeline.parquet").unlink()
    with pytest.raises(InputError, match=r"timeline\.parquet"):
        trace_file.read(folder)


def test_tables_of_two_traces_are_not_mixed(folder, small_trace, tmp_path):
    names = small_trace.signatures.assign(name="another")
    trace_file.write(replace(small_trace, signatures=names), tmp_path / "U")
    (tmp_path / "U" / "signatures.parquet").replace(folder / "signatures.parquet")
    with pytest.raises(FormatError, match="mixed"):
        trace_file.read(folder)


def test_a_folder_with_other_files_is_never_replaced(tmp_path, small_trace):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds other files"):
        trace_file.write(small_trace, mine)
    assert (mine / "thesis.tex").read_text() == "years of work"


def test_an_older_trace_is_replaced_whole(folder, small_trace):
    trace_file.write(replace(small_trace, notes=("second",)), folder)
    assert trace_file.read(folder).notes == ("second",)
    assert [path.name for path in folder.parent.iterdir()] == ["T"]


def test_nothing_is_left_behind_when_the_trace_is_unsound(tmp_path, small_trace):
    broken = replace(small_trace, profile=small_trace.profile.assign(duration_ns=float("inf")))
    with pytest.raises(FormatError, match="finite"):
        trace_file.write(broken, tmp_path / "T")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("timeline", {"signature": 77}, "refers to a signature"),
        ("timeline", {"duration_ns": -1}, "at least 0"),
        ("timeline", {"phase": "sideways"}, "expected one of"),
        ("timeline", {"launches": 0}, "at least 1"),
        ("profile", {"pair": 77}, "refers to a pair"),
        ("profile", {"duration_ns": float("nan")}, "unknown"),
        ("profile", {"signature": 0, "pair": 0}, "repeats"),
        ("pairs", {"core_mhz": 1000, "mem_mhz": 800}, "listed twice"),
    ],
)
def test_unsound_tables_are_refused(small_trace, table, change, message):
    frame = getattr(small_trace, table).assign(**change)
    with pytest.raises(FormatError, match=message):
        replace(small_trace, **{table: frame}).checked()


def test_an_empty_timeline_is_refused(small_trace):
    with pytest.raises(FormatError, match="no kernel"):
        replace(small_trace, timeline=small_trace.timeline.iloc[:0]).checked()


def test_unknown_stays_unknown_and_is_never_zero(folder):
    back = trace_file.read(folder)
    assert back.timeline["layer"].isna().all()
    assert back.pairs["idle_power_w"].isna().all()


@pytest.mark.parametrize("provenance", ["measured", "sensed", "fitted"])
@pytest.mark.parametrize("other", ["simulated", "imported", "assumed"])
def test_a_recording_of_a_real_gpu_is_not_replaced_by_anything_less(
    tmp_path, small_trace, provenance, other
):
    real = replace(
        small_trace, gpu={"name": "NVIDIA H200", "simulated": False}, provenance=provenance
    )
    trace_file.write(real, tmp_path / "T")
    less = replace(real, provenance=other)
    with pytest.raises(InputError, match=f"holds a {provenance} trace of NVIDIA H200"):
        trace_file.write(less, tmp_path / "T")
    assert trace_file.read(tmp_path / "T").provenance == provenance
    trace_file.write(replace(real, partial="cut short"), tmp_path / "T")
    assert trace_file.read(tmp_path / "T").caveats == ("the trace is incomplete: cut short",)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"provenance": "measured"}', "\xff"])
def test_what_cannot_be_read_may_have_been_a_recording(folder, small_trace, text):
    (folder / "trace.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match="a recording perhaps"):
        trace_file.write(small_trace, folder)
    assert (folder / "timeline.parquet").exists()


def test_a_simulation_may_be_replaced(folder, small_trace):
    trace_file.write(replace(small_trace, provenance="imported"), folder)
    assert trace_file.read(folder).provenance == "imported"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpu": None}, "field gpu"),
        ({"gpu": {}}, "field gpu: 'name'"),
        ({"workload": []}, "field workload"),
        ({"cyclic": "yes"}, "field cyclic"),
        ({"switch_min_dwell_ns": "a"}, "field switch_min_dwell_ns"),
        ({"notes": "abc"}, "field notes"),
        ({"partial": 5}, "field partial"),
        ({"baseline": {"pair": "governor", "time_ns": -1, "energy_mj": 1}}, "baseline/time_ns"),
        ({"baseline": {"pair": "top", "time_ns": 1, "energy_mj": 1}}, "baseline/pair"),
        ({"simulated": False}, r"disagree \(simulated\)"),
        ({"kernels": 9}, r"disagree \(kernels\)"),
        ({"clock_pairs": []}, r"disagree \(clock_pairs\)"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(folder, change, said):
    document = folder / "trace.json"
    document.write_text(json.dumps(json.loads(document.read_text()) | change))
    with pytest.raises(FormatError, match=said) as refused:
        trace_file.read(folder)
    assert str(folder) in str(refused.value)


def test_damaged_pages_are_one_refusal(folder):
    """Whatever bytes of a table are overwritten, it is read whole or refused."""
    path = folder / "profile.parquet"
    whole = path.read_bytes()
    for start in range(4, len(whole) - 40, 97):
        path.write_bytes(whole[:start] + bytes(range(200, 240)) + whole[start + 40 :])
        with contextlib.suppress(FormatError):
            trace_file.read(folder)


def test_caveats_tell_what_is_missing_before_the_notes(small_trace):
    noted = replace(small_trace, notes=("hot",))
    assert noted.caveats == ("hot",)
    assert replace(noted, partial="cut").caveats == ("the trace is incomplete: cut", "hot")
