"""Each oddity seen in other people's traces: the right value, or a clear refusal."""

import gzip
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clockwright.data import trace as trace_files
from clockwright.data.errors import FormatError, InputError
from clockwright.tracer.importers import import_file, write_traces
from tests.tracer.importers.kineto_files import document, event, kernel, launch, only, step, write


def names(trace):
    return trace.signatures["name"].iloc[trace.timeline["signature"]].tolist()


def test_absolute_timestamps_keep_every_nanosecond(tmp_path):
    path = write(
        tmp_path / "t.json",
        kernel("a", "1712195495740538.801", "0.640"),
        kernel("b", "1712195495740539.701", "2.001"),
    )
    timeline = only(import_file(path)).timeline
    assert timeline["start_ns"].tolist() == [0, 900]
    assert timeline["duration_ns"].tolist() == [640, 2001]
    gap = timeline["start_ns"][1] - timeline["start_ns"][0] - timeline["duration_ns"][0]
    assert gap == 260


@pytest.mark.parametrize("base", [0, 1712195495000000000])
def test_relative_and_absolute_epochs_give_the_same_trace(tmp_path, base):
    head = f'\n "baseTimeNanoseconds": {base},'
    path = write(tmp_path / "t.json", kernel(ts="10.100"), kernel(ts="20.300"), head=head)
    trace = only(import_file(path))
    assert trace.timeline["start_ns"].tolist() == [0, 10200]
    assert trace.workload["base_time_ns"] == base


def test_old_categories_in_capitals_and_streams_named_in_words(tmp_path):
    path = write(
        tmp_path / "t.json",
        kernel("a", "10.000", cat="Kernel", tid="stream 7", pid="GPU 0", stream=None, device=None),
        kernel("b", "20.000", cat="Kernel", tid="stream 20", pid="GPU 0", stream=None, device=None),
        kernel("c", "30.000", cat="KERNEL", tid="stream 7", pid="GPU 0", stream=None, device=None),
    )
    result = import_file(path)
    assert (result.kernels, result.streams) == (3, 2)
    assert only(result).timeline["stream"].tolist() == [7, 20, 7]


def test_kernels_whose_times_were_never_written_are_dropped(tmp_path):
    rows = [kernel("a", f"{10 * n}.000") for n in range(1, 6)]
    rows += [kernel("a", "0", "0")] * 3 + [kernel("a", "0.000", "0.000")]
    result = import_file(write(tmp_path / "t.json", *rows))
    assert result.kernels == 5
    assert result.total_kernel_ns == 5 * 5000
    assert result.dropped == {"kernel without a time (start and duration 0)": 4}


def test_a_start_of_zero_among_absolute_times_is_dropped(tmp_path):
    rows = [kernel("a", f"171219549574{n}00.000") for n in range(10, 15)]
    result = import_file(write(tmp_path / "t.json", *rows, kernel("a", "0", "4.000")))
    assert result.kernels == 5
    assert sum(result.dropped.values()) == 1


def test_a_first_kernel_at_zero_is_kept(tmp_path):
    result = import_file(write(tmp_path / "t.json", kernel(ts="0"), kernel(ts="9.000")))
    assert (result.kernels, result.dropped) == (2, {})


def test_a_start_of_zero_in_a_clock_since_boot_is_dropped_and_in_a_relative_one_kept(tmp_path):
    boot = [kernel("a", f"5247611062.{n}00") for n in range(3)]
    result = import_file(write(tmp_path / "t.json", *boot, kernel("a", "0", "4.000")))
    assert result.dropped == {"kernel without a start (0)": 1}
    relative = [kernel("a", f"{n * 10**6}.0") for n in range(9)]
    assert import_file(write(tmp_path / "r.json", *relative)).kernels == 9


def test_a_kernel_of_no_length_is_kept(tmp_path):
    result = import_file(write(tmp_path / "t.json", kernel(ts="5.000", dur="0"), kernel(ts="9.0")))
    trace = only(result)
    assert trace.timeline["duration_ns"].tolist() == [0, 5000]
    assert result.kernels == 2


@pytest.mark.parametrize(
    ("dur", "reason"),
    [
        ("-1", "kernel with a negative duration"),
        ("0.-660", "kernel with a negative duration"),
        ("3155760000000000.000", "kernel of a day or longer (a wrapped clock)"),
        ("18446744073709551.615", "kernel whose time is beyond 64 bits of nanoseconds"),
        ("18446744073709551616", "kernel whose time is beyond 64 bits of nanoseconds"),
        ('"long"', "kernel whose time is no number"),
        ("null", "kernel without a start or a duration"),
    ],
)
def test_a_duration_that_cannot_be_is_dropped_with_its_reason(tmp_path, dur, reason):
    path = write(tmp_path / "t.json", kernel(ts="1.000"), kernel(ts="2.000", dur=dur))
    result = import_file(path)
    assert result.kernels == 1
    assert result.total_kernel_ns == 5000
    assert result.dropped == {reason: 1}


def test_a_negative_start_printed_by_halves_is_read_as_it_was_meant(tmp_path):
    path = write(tmp_path / "t.json", kernel(ts="0.-660", dur="0.100"), kernel(ts="0.340"))
    result = import_file(path)
    assert only(result).timeline["start_ns"].tolist() == [0, 1000]
    assert result.repaired == {"fraction with a sign inside read as negative": 1}


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (rb"C:\src\kernel.cu:f", r"C:\src\kernel.cu:f"),
        (rb"C:\dir\\", "C:\\dir\\\\"),
        (b'f<"a">(int)', 'f<"a">(int)'),
        (b"k\x01k", "k\x01k"),
        (b"k\xffk", "k�k"),
    ],
)
def test_a_name_that_is_no_json_is_mended_and_counted(tmp_path, raw, name):
    text = document(kernel("first", "1.000"), kernel("PLACE", "9.000")).encode()
    path = tmp_path / "t.json"
    path.write_bytes(text.replace(b"PLACE", raw))
    result = import_file(path)
    assert names(only(result)) == ["first", name]
    assert sum(result.repaired.values()) >= 1
    assert any("mended" in note for note in result.notes)


def test_kernels_all_called_unknown_are_told_apart_by_their_launch(tmp_path):
    grids = [[1, 1, 1], [2, 1, 1], [1, 1, 1], [2, 2, 1]]
    rows = [kernel("unknown", f"{10 * n}.0", grid=grid) for n, grid in enumerate(grids, 1)]
    trace = only(import_file(write(tmp_path / "t.json", *rows)))
    assert trace.timeline["signature"].tolist() == [0, 1, 0, 2]
    assert trace.signatures["grid"].tolist() == ["1,1,1", "2,1,1", "2,2,1"]


def test_missing_launch_fields_are_unknown_and_not_zero(tmp_path):
    bare = {"grid": None, "block": None, "registers_per_thread": None, "shared_memory": None}
    trace = only(import_file(write(tmp_path / "t.json", kernel("rocm", **bare))))
    row = trace.signatures.iloc[0]
    assert row[["grid", "block", "shared_bytes", "registers", "op", "shapes"]].isna().all()


def test_args_of_unexpected_kinds_do_not_stop_the_file(tmp_path):
    odd = [
        kernel("a", "1.0", grid="[4, 2, 1]", registers_per_thread=True, stream="7"),
        kernel("b", "9.0", grid={"x": 1}, stream=7.0, correlation=1.5),
        kernel("c", "20.0", **{"External id": None, "graph node id": "x"}),
        '{"ph": "X", "cat": "kernel", "name": "d", "pid": 0, "tid": 7, "ts": 30.0, "dur": 1.0, '
        '"args": [1, 2]}',
        '{"ph": "X", "cat": "kernel", "name": null, "tid": 7, "ts": 40.0, "dur": 1.0}',
        "null",
        "[]",
    ]
    result = import_file(write(tmp_path / "t.json", *odd))
    trace = only(result)
    assert result.kernels == 5
    assert names(trace) == ["a", "b", "c", "d", "unknown"]
    assert trace.signatures["grid"].iloc[0] == "4,2,1"
    assert set(trace.timeline["stream"]) == {7}


def test_a_long_kernel_over_a_short_one_on_one_stream_is_kept_and_noted(tmp_path):
    path = write(
        tmp_path / "t.json",
        kernel("long", "10.000", "1600000.000"),
        kernel("short", "20.000", "10.000"),
    )
    result = import_file(path)
    assert result.total_kernel_ns == 1_600_010_000
    assert only(result).timeline["duration_ns"].tolist() == [1_600_000_000, 10_000]
    assert any("overlap" in note and "10000 ns" in note for note in result.notes)


def test_overlaps_of_tens_of_nanoseconds_are_kept(tmp_path):
    rows = [kernel("a", f"{10 + 5 * n - 0.03 * n:.3f}", "5.000") for n in range(5)]
    result = import_file(write(tmp_path / "t.json", *rows))
    assert result.total_kernel_ns == 25_000
    assert only(result).timeline["start_ns"].tolist() == [0, 4970, 9940, 14910, 19880]
    assert any("by at most 30 ns" in note for note in result.notes)


def test_truly_overlapping_streams_are_kept_apart_and_the_budget_is_wall_time(tmp_path):
    rows = [kernel("a", "10.000", "100.000", stream=7), kernel("b", "20.000", "100.000", stream=20)]
    result = import_file(write(tmp_path / "t.json", *rows))
    trace = only(result)
    assert result.streams == 2
    assert result.total_kernel_ns == 200_000
    assert trace.baseline.time_ns == 110_000
    assert trace.timeline["stream"].tolist() == [7, 20]
    assert not any("overlap" in note for note in result.notes)


def test_a_kernel_that_starts_before_its_launch_is_kept_and_noted(tmp_path):
    path = write(tmp_path / "t.json", launch(5, "12.000"), kernel("a", "10.000", correlation=5))
    result = import_file(path)
    assert only(result).timeline["launch_ns"].tolist() == [2000]
    assert any("before their launch" in note for note in result.notes)


def test_a_kernel_without_a_launch_in_the_window_has_none(tmp_path):
    path = write(
        tmp_path / "t.json",
        launch(5, "1.000"),
        kernel("a", "10.000", correlation=4),
        kernel("b", "20.000", correlation=5),
    )
    launches = only(import_file(path)).timeline["launch_ns"]
    assert launches.isna().tolist() == [True, False]
    assert launches[1] == -9000


def test_a_thousand_kernels_of_one_graph_launch_are_told_apart_by_node(tmp_path):
    rows = [launch(9, "1.000", name="cudaGraphLaunch", external=3)]
    rows.append(event("cpu_op", "aten::mm", "0.500", "3.000", **{"External id": 3}))
    ids = {"External id": 3, "graph id": 1}
    rows += [
        kernel(f"k{n % 10}", f"{10 + n}.000", "0.500", correlation=9, graph_node_id=n + 1, **ids)
        for n in range(1000)
    ]
    result = import_file(write(tmp_path / "t.json", *rows))
    trace = only(result)
    assert result.kernels == len(trace.timeline) == 1000
    assert len(trace.signatures) == 10
    assert trace.timeline["launch_ns"].nunique() == 1
    assert trace.timeline["op"].isna().all()


def test_graph_kernels_that_overtake_each_other_are_still_the_same_step(tmp_path):
    rows = []
    orders = ([0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 3])
    for replay, order in enumerate(orders):
        at = 1000 * (replay + 1)
        rows.append(step(replay, f"{at}.000", "900.000"))
        rows.append(launch(replay, f"{at + 1}.000", name="cudaGraphLaunch"))
        for place, node in enumerate(order):
            rows.append(
                kernel(
                    f"node{node}",
                    f"{at + 10 + 10 * place}.000",
                    f"{1 + node}.000",
                    correlation=replay,
                    **{"graph node id": 50 + node},
                )
            )
    result = import_file(write(tmp_path / "t.json", *rows))
    trace = only(result)
    assert (result.steps, result.kernels, len(trace.timeline)) == (3, 12, 4)
    assert result.dropped == {}
    by_name = dict(zip(trace.signatures["name"], trace.profile["duration_ns"], strict=True))
    assert by_name == {f"node{n}": 1000.0 * (1 + n) for n in range(4)}


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64 + 5])
def test_ids_above_63_bits_still_link(tmp_path, number):
    path = write(
        tmp_path / "t.json",
        launch(number, "1.000", external=number),
        event("cpu_op", "aten::mm", "0.500", "3.000", **{"External id": number}),
        kernel("a", "10.000", correlation=number, **{"External id": number}),
        event("cpu_op", "aten::add", "0.500", "3.000", **{"External id": 7}),
    )
    timeline = only(import_file(path)).timeline
    assert timeline["op"].tolist() == ["aten::mm"]
    assert timeline["launch_ns"].tolist() == [-9000]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([event("cpu_op", "aten::mm", "1.0", "2.0", **{"External id": 1})], "1 cpu_op"),
        (['{"ph": "C", "name": "mem", "pid": 0, "ts": 1, "args": {"x": 1}}'], "1 uncategorised"),
        (['{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "p"}}'], "uncategorised"),
        ([], "no events"),
        ([kernel(dur="-1")], "1 x kernel with a negative duration"),
        ([event("gpu_memcpy", "Memcpy HtoD", "1.0", "2.0")], "1 x memory copy"),
    ],
)
def test_a_file_without_a_kernel_says_what_it_has(tmp_path, rows, found):
    path = write(tmp_path / "t.json", *rows)
    with pytest.raises(FormatError, match=found):
        import_file(path)


def test_copies_and_sets_of_memory_are_counted_as_dropped(tmp_path):
    rows = [
        event("gpu_memcpy", "Memcpy HtoD", "1.0", "2.0"),
        event("gpu_memset", "Memset", "4", "1"),
    ]
    result = import_file(write(tmp_path / "t.json", kernel(), *rows))
    assert result.dropped == {"memory copy (not a kernel)": 1, "memory set (not a kernel)": 1}


def test_begin_and_end_pairs_are_counted_as_dropped(tmp_path):
    half = kernel(ts="50.0").replace('"ph": "X"', '"ph": "B"')
    result = import_file(write(tmp_path / "t.json", kernel(), half))
    assert result.dropped == {"kernel event of phase 'B', not a complete event": 1}


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.txt"])
@pytest.mark.parametrize("packing", ["plain", "gzip", "members"])
def test_the_content_and_not_the_name_says_how_a_file_is_packed(tmp_path, name, packing):
    text = document(kernel(ts="1.0"), kernel(ts="9.0")).encode()
    packed = {
        "plain": text,
        "gzip": gzip.compress(text),
        "members": gzip.compress(text[:99]) + gzip.compress(text[99:]),
    }
    (tmp_path / name).write_bytes(packed[packing])
    result = import_file(tmp_path / name)
    assert (result.format, result.kernels, result.total_kernel_ns) == ("kineto", 2, 10_000)


def test_the_array_form_is_read(tmp_path):
    (tmp_path / "t.json").write_text("[" + kernel(ts="1.0") + "," + kernel(ts="9.0") + "]")
    assert import_file(tmp_path / "t.json").kernels == 2


def test_an_unclosed_array_makes_a_partial_trace(tmp_path):
    (tmp_path / "t.json").write_text("[" + kernel(ts="1.0") + "," + kernel(ts="9.0") + ",")
    assert "not closed" in only(import_file(tmp_path / "t.json")).partial


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_cut_files_are_refused_and_nothing_is_written(tmp_path, cut):
    text = document(*[kernel(ts=f"{10 * n}.0") for n in range(1, 9)]).encode()
    for name, whole in (("t.json", text), ("t.json.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(whole[: int(len(whole) * cut)])
        with pytest.raises(FormatError, match="cut off"):
            import_file(tmp_path / name)


def test_a_baseline_pair_can_be_named(tmp_path):
    path = write(tmp_path / "t.json", kernel())
    assert str(only(import_file(path, baseline="1410/9501")).baseline.pair) == "1410/9501"
    assert only(import_file(path)).baseline.pair.is_governor
    with pytest.raises(InputError, match="clock pair"):
        import_file(path, baseline="fast")


def test_a_trace_survives_writing_and_reading(tmp_path):
    path = write(tmp_path / "t.json", launch(1, "1.0"), kernel(correlation=1), kernel(ts="20.5"))
    result = import_file(path)
    (folder,) = write_traces(result, tmp_path / "T")
    again = trace_files.read(folder)
    assert again.timeline.equals(only(result).checked().timeline)
    assert again.provenance == "imported"
    assert not again.simulated


ODD_VALUES = ["null", "[]", "{}", '"x"', "true", "-1", "1e400", "99999999999999999999", "0.5"]
SOUND = document(
    step(1, "1.000", "50.000"),
    launch(1, "2.000", external=3),
    event("cpu_op", "aten::mm", "1.5", "3.0", **{"External id": 3, "Sequence number": 1}),
    event("python_function", "nn.Module: A_0", "1.0", "9.0"),
    *[kernel(name, f"{10 * n}.125", correlation=1) for n, name in enumerate("abcabc", 1)],
    head='"baseTimeNanoseconds": 12, "distributedInfo": {"rank": 1},',
)
VALUES = [match.span() for match in re.finditer(r'(?<=: )("[^"]*"|-?[\d.]+|\[[\d, ]*\])', SOUND)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(VALUES), st.sampled_from(ODD_VALUES), st.sampled_from(VALUES))
def test_any_value_of_any_kind_anywhere_is_read_or_refused(tmp_path_factory, one, value, other):
    text = SOUND
    for begin, end in sorted({one, other}, reverse=True):
        text = text[:begin] + value + text[end:]
    path = tmp_path_factory.getbasetemp() / "odd.json"
    path.write_text(text)
    try:
        result = import_file(path)
    except InputError as error:
        assert str(path) in str(error)
    else:
        for trace in result.traces.values():
            trace.checked()
