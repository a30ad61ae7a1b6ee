"""``clockwright trace`` on a real GPU as a user types it: the driver is fake, the keeper is real.

The instrument stands in for what needs CUDA (`tests/tracer/recording/instruments.py`); it sets
nothing, so every clock that a test sees set was set by the keeper process.
"""

import json
import os
import sys
import types

import pytest

from clockwright.cli import main
from clockwright.data import trace as trace_file
from clockwright.data.errors import WorkloadError
from clockwright.tracer.gpu.protocol import ThrottleReason
from clockwright.tracer.recording.instrument import MeasurementInterrupted, energy_note
from tests.fake_nvml.driver import NOT_SUPPORTED, Moment
from tests.tracer.recording.conftest import fake, gpu  # noqa: F401
from tests.tracer.recording.instruments import WORKLOAD, ScriptedInstrument

PAIRS = "1980/3201,1200/2201"


@pytest.fixture
def made(fake, monkeypatch):  # noqa: F811
    """Every instrument that a command made; ``before`` is called at each measurement."""

    class Made(list):
        def before(self, count):
            """Nothing, unless a test says otherwise."""

    instruments = Made()

    def make(loaded, opened, **options):
        instrument = ScriptedInstrument(
            opened,
            before=lambda count: instruments.before(count),  # noqa: PLW0108 (set later)
        )
        instruments.append(instrument)
        return instrument

    monkeypatch.setattr("clockwright.tracer.recording.instrument.SessionInstrument", make)
    fake.set_clocks([(mem, (1980, 1590, 1200)) for mem in (3201, 2201)])
    return instruments


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def command(*words):
        code = main(["trace", "gpt2", "--gpu", "nvml:0", "-o", "T", *words])
        return code, capsys.readouterr()

    return command


def test_by_default_nothing_is_set(run, made, fake_nvml, tmp_path):
    code, said = run()
    assert code == 0
    assert "1 clock pair\n" in said.out
    assert "(simulated)" not in said.out
    assert fake_nvml.setters() == []
    assert trace_file.read(tmp_path / "T").baseline.time_ns is not None
    assert (tmp_path / "T.recording" / "unlocked" / "raw.json").exists()


def test_with_the_switch_the_keeper_sweeps_and_gives_back(run, made, fake, fake_nvml, tmp_path):  # noqa: F811
    code, said = run("--set-clocks", "--json")
    assert code == 0
    document = json.loads(said.out)
    assert document["clock_pairs"] == 7
    assert document["partial"] is None
    assert any("3 of 6 clock pairs were measured" in note for note in document["notes"])
    assert {call.pid for call in fake_nvml.setters()}.isdisjoint({os.getpid()})
    assert fake.is_pristine
    assert len(made[0].clocks) == 4


def test_pairs_are_measured_as_asked(run, made, tmp_path):
    assert run("--set-clocks", "--pairs", PAIRS)[0] == 0
    assert made[0].clocks[1:] == [(1980, 3201), (1200, 2201)]
    assert len(trace_file.read(tmp_path / "T").pairs) == 3


def test_an_interrupted_sweep_is_kept_and_the_same_command_goes_on(run, made, fake, tmp_path):  # noqa: F811
    def before(count):
        if count == 2:
            raise KeyboardInterrupt

    made.before = before
    code, said = run("--set-clocks", "--exhaustive")
    assert code == 130
    assert [line for line in said.err.splitlines() if line] == [
        "what was measured until then is kept, marked partial, in T",
        "clockwright: error: interrupted",
    ]
    assert fake.is_pristine
    part = trace_file.read(tmp_path / "T")
    assert len(part.pairs) == 2
    assert part.partial.startswith("interrupted after 1 of the sweep's pairs")
    del made.before
    assert run("--set-clocks", "--exhaustive")[0] == 0
    assert len(made[1].clocks) == 5
    assert trace_file.read(tmp_path / "T").partial is None


def test_a_whole_trace_is_not_replaced_by_a_part(run, made, tmp_path):
    assert run()[0] == 0
    whole = trace_file.read(tmp_path / "T")

    def before(count):
        made.before = lambda count: None
        part = made[-1].measure(tmp_path)
        from dataclasses import replace

        raise MeasurementInterrupted(replace(part, partial="interrupted in part 'mixes'"))

    made.before = before
    code, said = run()
    assert code == 130
    assert "in T.partial" in said.err
    assert trace_file.read(tmp_path / "T").partial is None
    assert trace_file.read(tmp_path / "T").fingerprint == whole.fingerprint
    assert "mixes" in trace_file.read(tmp_path / "T.partial").partial


def test_a_script_that_raises_in_a_sweep_leaves_what_was_measured(run, made, fake, tmp_path):  # noqa: F811
    def before(count):
        if count == 1:
            raise WorkloadError("workload train.py:step failed: ValueError: bad (train.py, line 3)")

    made.before = before
    code, said = run("--set-clocks")
    assert code == 5
    assert said.err.splitlines()[-1] == (
        "clockwright: error: workload train.py:step failed: ValueError: bad (train.py, line 3)"
    )
    assert "train.py, line 3" in trace_file.read(tmp_path / "T").partial
    assert fake.is_pristine


def test_another_workload_in_the_same_folder_is_refused(run, made, monkeypatch):
    assert run("--set-clocks", "--pairs", PAIRS)[0] == 0
    other = {**WORKLOAD, "options": {"batch": 8}}
    monkeypatch.setattr(ScriptedInstrument, "workload", property(lambda self: other))
    code, said = run("--set-clocks", "--pairs", PAIRS)
    assert code == 2
    assert "was begun with another workload (options was {'batch': 4}" in said.err


def one_line(said, *words):
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err


def test_what_sets_clocks_needs_the_switch(run, made, tmp_path):
    for words in (["--pairs", PAIRS], ["--exhaustive"], ["--switches"]):
        code, said = run(*words)
        assert code == 4
        one_line(said, words[0], "say --set-clocks to allow it")
    assert made == []
    assert not (tmp_path / "T").exists()


def test_read_only_refuses_a_sweep_and_not_a_trace(run, made, monkeypatch, fake_nvml):
    monkeypatch.setenv("CLOCKWRIGHT_READ_ONLY", "1")
    code, said = run("--set-clocks")
    assert code == 4
    one_line(said, "CLOCKWRIGHT_READ_ONLY is set")
    assert run()[0] == 0
    assert fake_nvml.setters() == []


def test_a_missing_right_is_named_with_how_to_grant_it(run, made, fake_nvml, tmp_path):
    fake_nvml.allow_setters("nobody")
    code, said = run("--set-clocks")
    assert code == 4
    one_line(said, "CAP_SYS_ADMIN", "have an operator run clockwright's clock keeper as root")
    assert made[0].clocks == []
    assert not (tmp_path / "T").exists()


def test_a_gpu_that_others_use_is_refused_by_their_process(run, made, fake, tmp_path):  # noqa: F811
    fake.set_processes([os.getpid(), 4242])
    for words in ([], ["--set-clocks"]):
        code, said = run(*words)
        assert code == 4
        one_line(said, "process 4242 computes on NVIDIA Fake 100 too")
    assert not (tmp_path / "T").exists()


def test_heat_throughout_is_noted(run, made, fake):  # noqa: F811
    hot = ThrottleReason.SW_THERMAL
    fake.set_moments([Moment(reasons=hot, temperature_c=92)])
    code, said = run()
    assert code == 0
    assert "note: the GPU throttled for heat throughout" in said.out


def test_power_integration_is_labelled(fake, gpu, fake_nvml):  # noqa: F811
    assert energy_note(gpu) == ()
    fake_nvml.fail("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    (note,) = energy_note(gpu)
    assert "no energy counter" in note
    assert "power-integration" in note


def test_no_gpu_no_driver_and_mig_are_told(run, fake, fake_nvml):  # noqa: F811
    fake.set(mig_mode=1)
    code, said = run()
    assert code == 4
    one_line(said, "MIG is enabled on it", "-mig 0")
    fake_nvml.set_count(0)
    code, said = run()
    assert code == 4
    one_line(said, "finds no GPU")
    fake_nvml.fail("nvmlInitWithFlags", 9)
    code, said = run()
    assert code == 4
    one_line(said, "no NVIDIA driver is loaded here")


def test_the_wrong_pynvml_is_named(run, monkeypatch):
    wrong = types.ModuleType("pynvml")
    wrong.__path__ = ["/site/pynvml"]
    wrong.__file__ = "/site/pynvml/__init__.py"
    monkeypatch.setitem(sys.modules, "pynvml", wrong)
    code, said = run()
    assert code == 4
    one_line(said, "/site/pynvml/__init__.py is not NVIDIA's nvidia-ml-py", "pip uninstall pynvml")


def test_a_torch_without_cuda_is_told(run, fake, tmp_path):  # noqa: F811
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch has CUDA")
    code, said = run()
    assert code == 2
    one_line(said, "device cuda:0 is not here", "--gpu sim:NAME")
    assert not (tmp_path / "T").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "--minutes must be over 0"),
        (["--repeats", "1"], "--repeats must be at least 2"),
        (["--set-clocks", "--target-error", "good"], "expected a percentage"),
        (["--set-clocks", "--pairs", "1234/3201"], "lists no pair 1234/3201"),
    ],
)
def test_senseless_options_are_one_line(run, made, words, message):
    code, said = run(*words)
    assert code == 2
    one_line(said, message)


def test_an_output_of_other_files_is_refused_before_anything_is_measured(run, made, tmp_path):
    (tmp_path / "T").mkdir()
    (tmp_path / "T" / "thesis.tex").write_text("x")
    code, said = run()
    assert code == 2
    one_line(said, "T exists and is no trace folder")
    assert made == []
