import gzip

import pytest

from clockwright.data import trace as trace_files
from clockwright.data.errors import FormatError, InputError
from clockwright.tracer.importers import import_file, write_traces
from tests.tracer.importers.kineto_files import document, event, kernel, write


def rank(number, at="10.000", name="k"):
    head = f'\n "distributedInfo": {{"backend": "nccl", "rank": {number}, "world_size": 2}},'
    return document(kernel(name, at), kernel("z", "90.000"), head=head)


def test_two_ranks_that_both_call_themselves_device_0_are_kept_apart(tmp_path):
    (tmp_path / "a.json").write_text(rank(0))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(rank(1, "50.000").encode()))
    result = import_file(tmp_path)
    assert list(result.traces) == ["rank0", "rank1"]
    assert (result.kernels, result.streams, result.steps) == (4, 2, 1)
    # Absolute times of different ranks are not compared: each begins at its own zero.
    starts = [trace.timeline["start_ns"].tolist() for trace in result.traces.values()]
    assert starts == [[0, 80_000], [0, 40_000]]


def test_ranks_without_a_number_inside_take_it_from_their_names(tmp_path):
    for number in (10, 2):
        write(tmp_path / f"trace_rank{number}.json", kernel())
    write(tmp_path / "zz.json", kernel())
    assert list(import_file(tmp_path).traces) == ["rank2", "rank10", "zz"]


def test_two_files_that_claim_one_rank_are_both_kept(tmp_path):
    (tmp_path / "a.json").write_text(rank(0))
    (tmp_path / "b.json").write_text(rank(0))
    assert list(import_file(tmp_path).traces) == ["rank0", "rank0-2"]


def test_a_process_with_several_devices_gives_a_trace_each(tmp_path):
    path = write(
        tmp_path / "t.json",
        kernel(device=0),
        kernel(device=1, ts="20.0"),
        kernel(device=0, ts="30.0"),
    )
    result = import_file(path)
    assert list(result.traces) == ["rank0-device0", "rank0-device1"]
    assert [len(t.timeline) for t in result.traces.values()] == [2, 1]
    assert result.streams == 2


def test_other_files_and_ranks_without_kernels_are_counted(tmp_path):
    (tmp_path / "a.json").write_text(rank(0))
    write(tmp_path / "cpu.json", event("cpu_op", "aten::mm", "1.0", "2.0"))
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").write_text("")
    result = import_file(tmp_path)
    assert result.dropped == {"file that is no recording": 2, "file without a GPU kernel": 1}


def test_ranks_in_folders_of_their_own_are_found(tmp_path):
    for number in (0, 1):
        (tmp_path / f"rank{number}").mkdir()
        write(tmp_path / f"rank{number}" / "trace.json", kernel())
    assert list(import_file(tmp_path).traces) == ["rank0", "rank1"]


def test_one_cut_rank_refuses_the_folder(tmp_path):
    (tmp_path / "a.json").write_text(rank(0))
    (tmp_path / "b.json").write_text(rank(1)[:-60])
    with pytest.raises(FormatError, match=r"b\.json: byte \d+"):
        import_file(tmp_path)


def test_a_folder_without_recordings_is_refused(tmp_path):
    with pytest.raises(InputError, match="no recording in this folder"):
        import_file(tmp_path)
    write(tmp_path / "cpu.json", event("cpu_op", "aten::mm", "1.0", "2.0"))
    with pytest.raises(InputError, match="no recording of a GPU"):
        import_file(tmp_path)


def test_several_ranks_are_written_as_folders_and_an_earlier_import_is_replaced(tmp_path):
    source, output = tmp_path / "in", tmp_path / "T"
    source.mkdir()
    (source / "a.json").write_text(rank(0))
    (source / "b.json").write_text(rank(1))
    result = import_file(source)
    for _ in range(2):
        written = write_traces(result, output)
        assert written == [output / "rank0", output / "rank1"]
        assert [trace_files.read(path).workload["rank"] for path in written] == [0, 1]


def test_somebody_elses_folder_is_not_replaced(tmp_path):
    source, output = tmp_path / "in", tmp_path / "T"
    source.mkdir()
    output.mkdir()
    (output / "thesis.txt").write_text("mine")
    (source / "a.json").write_text(rank(0))
    (source / "b.json").write_text(rank(1))
    with pytest.raises(InputError, match="holds other files"):
        write_traces(import_file(source), output)
    assert (output / "thesis.txt").read_text() == "mine"


def test_a_trace_folder_needs_no_import(tmp_path):
    path = write(tmp_path / "t.json", kernel())
    (folder,) = write_traces(import_file(path), tmp_path / "T")
    with pytest.raises(InputError, match="is a trace folder already"):
        import_file(folder)
