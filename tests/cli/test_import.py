"""``clockwright import`` as a user types it: other tools' files in, a plan out."""

import gzip
import json
from dataclasses import replace

import pytest

from clockwright.cli import main
from clockwright.data import schedule as schedules
from clockwright.data import trace as traces


def kernel(name, start, took, *, correlation, block=128):
    return {
        "ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": took, "pid": 0, "tid": 7,
        "args": {
            "device": 0, "stream": 7, "correlation": correlation, "grid": [64, 1, 1],
            "block": [block, 1, 1], "registers per thread": 32, "shared memory": 0,
        },
    }  # fmt: skip


def document(steps=3, rank=None):
    events = []
    for step in range(steps):
        at = 1000.0 * step
        for number, (name, took) in enumerate([("gemm", 300.25), ("copy", 99.125)]):
            launch = 10 * step + number
            events.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,
                 "ts": at + 10 * number, "dur": 5.0, "args": {"correlation": launch}}
            )  # fmt: skip
            events.append(kernel(name, at + 50 + 400 * number, took, correlation=launch))
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 9,
             "tid": 9, "ts": at, "dur": 900.0, "args": {}}
        )  # fmt: skip
    events.append(
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": 950.0,
         "dur": 2.0, "args": {"device": 0, "stream": 7}}
    )  # fmt: skip
    whole = {"schemaVersion": 1, "traceEvents": events}
    if rank is not None:
        whole["distributedInfo"] = {"rank": rank, "world_size": 2}
    return json.dumps(whole)


def imported(capsys, *arguments):
    capsys.readouterr()
    assert main(["import", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_kineto_trace_is_told_by_its_content_and_counted(tmp_path, capsys):
    path = tmp_path / "trace.json"  # gzip named json
    path.write_bytes(gzip.compress(document().encode()))
    found = imported(capsys, path, "-o", tmp_path / "T")
    assert (found["kernels"], found["steps"], found["streams"]) == (6, 3, 1)
    assert found["total_kernel_ns"] == 3 * (300_250 + 99_125)
    assert sum(found["dropped"].values()) == 1
    assert "copy" in next(iter(found["dropped"]))
    trace = traces.read(tmp_path / "T")
    assert trace.timeline["duration_ns"].tolist() == [300_250, 99_125]
    assert trace.provenance == "imported"


def test_a_folder_of_ranks_becomes_a_trace_a_rank(tmp_path, capsys):
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(2):
        (folder / f"worker{rank}.json").write_text(document(rank=rank))
    found = imported(capsys, folder, "-o", tmp_path / "T")
    assert found["kernels"] == 12
    assert len(found["output"]) == 2
    for path in found["output"]:
        assert len(traces.read(tmp_path / "T" / path.rsplit("/", 1)[-1]).timeline) == 2


def test_a_timeline_is_planned_with_an_assumed_gpu_and_says_so(tmp_path, capsys):
    (tmp_path / "t.json").write_text(document())
    imported(capsys, tmp_path / "t.json", "-o", tmp_path / "T")
    command = ["optimize", str(tmp_path / "T"), "-o", str(tmp_path / "S.json")]
    assert main(command) == 2
    assert "--assume" in capsys.readouterr().err
    assert main([*command, "--assume", "h200", "--max-slowdown", "5%"]) == 0
    assert "(assumed, simulated)" in capsys.readouterr().out
    schedule = schedules.read(tmp_path / "S.json")
    assert schedule.provenance == "assumed"
    assert any("are assumed" in note for note in schedule.notes)
    played = ["replay", str(tmp_path / "S.json"), "--block", "1ms", "--no-single"]
    played += ["--max-slowdown", "20%"]
    assert main(played) == 2
    assert "--trace TRACE" in capsys.readouterr().err
    assert main([*played, "--trace", str(tmp_path / "T")]) == 0
    said = capsys.readouterr().out
    assert "the assumed table" in said
    assert "simulated, plan of assumed cells" in said
    chart = ["plot", str(tmp_path / "S.json"), "-o", str(tmp_path / "p.svg")]
    assert main([*chart, "--trace", str(tmp_path / "T")]) == 0
    assert "NVIDIA H200 (assumed, simulated)" in (tmp_path / "p.svg").read_text()


def test_an_assumed_plan_is_of_the_product_and_the_pair_it_was_made_for(tmp_path, capsys):
    (tmp_path / "t.json").write_text(document())
    for name, pair in (("at", "1530/877"), ("off", "governor")):
        given = ["-o", tmp_path / name, "--baseline", pair]
        imported(capsys, tmp_path / "t.json", *given)
    command = ["optimize", str(tmp_path / "at"), "-o", str(tmp_path / "S.json")]
    assert main([*command, "--assume", "v100", "--max-slowdown", "5%"]) == 0
    schedule = schedules.read(tmp_path / "S.json")
    assert schedule.gpu["name"] == "Tesla V100-SXM2-32GB"
    assert str(schedule.baseline_pair) == schedule.gpu["recorded_at"] == "1530/877"
    played = ["replay", str(tmp_path / "S.json"), "--no-single", "--block", "1ms"]
    assert main([*played, "--trace", str(tmp_path / "off")]) == 2
    assert "recorded at 1530/877" in capsys.readouterr().err
    assert main([*played, "--trace", str(tmp_path / "at"), "--max-slowdown", "20%"]) == 0


def test_a_front_may_be_drawn_from_assumed_responses(tmp_path, capsys):
    (tmp_path / "t.json").write_text(document())
    imported(capsys, tmp_path / "t.json", "-o", tmp_path / "T")
    command = ["pareto", str(tmp_path / "T"), "-o", str(tmp_path / "p.svg")]
    assert main(command) == 2
    assert "--assume" in capsys.readouterr().err
    assert main([*command, "--assume", "h200", "--latencies", "free"]) == 0
    assert "assumed, simulated" in (tmp_path / "p.svg").read_text()
    assert "are assumed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (document().encode()[:900], "byte"),
        (gzip.compress(document().encode())[:-30], "gzip"),
        (b'{"traceEvents": []}', "kernel"),
        (b"\x00\x01\x02 nothing of the kind", "no kind known"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_nothing_is_written(tmp_path, capsys, content, message):
    (tmp_path / "bad.json").write_bytes(content)
    assert main(["import", str(tmp_path / "bad.json"), "-o", str(tmp_path / "T")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "bad.json" in said
    assert message in said
    assert not (tmp_path / "T").exists()


@pytest.fixture
def recording(tmp_path, small_trace):
    real = replace(small_trace, gpu={"name": "NVIDIA H200", "simulated": False})
    real = replace(real, provenance="measured")
    traces.write(real, tmp_path / "H")
    return tmp_path / "H"


def test_an_export_read_back_does_not_replace_its_recording(recording, tmp_path, capsys):
    assert main(["export", str(recording), "-o", str(tmp_path / "x.csv")]) == 0
    assert main(["import", str(tmp_path / "x.csv"), "-o", str(recording)]) == 2
    assert "measured trace of NVIDIA H200" in capsys.readouterr().err
    assert len(traces.read(recording).timeline) == 3


@pytest.mark.parametrize("place", ["H", "."])
def test_ranks_do_not_replace_a_recording_either(recording, tmp_path, capsys, place):
    (tmp_path / "ranks").mkdir()
    for rank in range(2):
        (tmp_path / "ranks" / f"rank{rank}.json").write_text(document(rank=rank))
    (tmp_path / "out").mkdir()
    recording = recording.rename(tmp_path / "out" / "H")
    assert main(["import", str(tmp_path / "ranks"), "-o", str(tmp_path / "out" / place)]) == 2
    assert "measured trace of NVIDIA H200" in capsys.readouterr().err
    assert len(traces.read(recording).timeline) == 3
