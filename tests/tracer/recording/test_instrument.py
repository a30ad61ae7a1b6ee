"""The real GPU's instrument: a part that fails ends in one line, or in a partial trace."""

from types import SimpleNamespace

import pytest

from clockwright.data.errors import FormatError, WorkloadError
from clockwright.tracer.gpu.protocol import Capabilities, Capability, GpuInfo
from clockwright.tracer.measure.timeline import read_timeline
from clockwright.tracer.recording.instrument import MeasurementInterrupted, SessionInstrument
from clockwright.tracer.recording.record import how_much
from tests.tracer.recording.folders import CLOCK_MHZ, NAMES, profile, raw_folder

WORKLOAD = {"name": "train.py:step", "options": {}, "fingerprint": "f"}
PARTS = ("build", "step", "timeline", "loops", "ambient", "mixes", "again")


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch names its own."""


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Measure with a session whose part ``fails`` raises; returns the trace and the parts run."""
    told = profile(tmp_path / "keys.json", [CLOCK_MHZ] * 2)
    keys = dict(zip(NAMES, map(list, read_timeline(told).keys()), strict=True))
    ran = []

    def call(fails=None, error=None, *, sensed=False, counter=Capability.YES, empty=False):
        folder = tmp_path / "raw"
        folder.mkdir()

        class FakeSession:
            def __init__(self, workload, gpu, folder, options, *, device, step):
                self.record, self.loops, self.step = {"partial": None}, [], step or object()

            def __enter__(self):
                return self

            def __exit__(self, *_):
                """Nothing was opened."""

            def write(self):
                changes = {"mixes": []} if empty else {}
                raw_folder(folder, keys, partial=self.record["partial"], **changes)

            def parts(self):
                def run(name):
                    ran.append(name)
                    if name == fails:
                        raise error
                    self.write()

                for name in PARTS:
                    yield name, lambda name=name: run(name)

        monkeypatch.setattr("clockwright.tracer.recording.session.Session", FakeSession)
        gpu = SimpleNamespace(
            info=GpuInfo(name="NVIDIA H200", uuid="GPU-0"),
            capabilities=lambda: Capabilities(energy_counter=counter),
        )
        instrument = SessionInstrument(None, gpu, name=WORKLOAD, on_part=lambda name: None)
        return instrument.measure(folder, sensed=sensed)

    call.ran = ran
    return call


def test_a_locked_measurement_leaves_out_what_needs_clocks_that_move(measure):
    trace = measure()
    assert measure.ran == [part for part in PARTS if part != "ambient"]
    assert len(trace.pairs) == 1
    assert trace.partial is None


def test_an_unlocked_one_takes_every_part(measure):
    trace = measure(sensed=True)
    assert measure.ran == list(PARTS)
    assert len(trace.pairs) > 1


def test_out_of_memory_says_what_to_do(measure):
    failure = OutOfMemoryError("CUDA out of memory.\nTried to allocate 8 GiB")
    with pytest.raises(WorkloadError, match=r"ran out of GPU memory \(in part 'build'.*smaller"):
        measure("build", failure)


def test_a_loop_without_room_keeps_the_step_if_nothing_can_be_put_together(measure):
    failure = OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(WorkloadError, match=r"ran out of GPU memory \(in part 'loops'"):
        measure("loops", failure, empty=True)


def test_a_late_failure_gives_a_partial_trace(measure):
    trace = measure("again", RuntimeError("CUDA error: an illegal access"))
    assert trace.partial == (
        "workload train.py:step failed in part 'again' of the measurement: "
        "CUDA error: an illegal access"
    )


def test_the_steps_own_failure_is_told_as_it_is(measure):
    failure = WorkloadError("workload train.py:step failed: ValueError: bad (train.py, line 3)")
    with pytest.raises(WorkloadError, match=r"train\.py, line 3"):
        measure("step", failure)


def test_ctrl_c_among_the_mixes_keeps_what_there_is(measure):
    with pytest.raises(MeasurementInterrupted) as stop:
        measure("mixes", KeyboardInterrupt())
    assert stop.value.trace.partial == "interrupted in part 'mixes' of the measurement"


def test_ctrl_c_before_the_timeline_is_just_that(measure):
    with pytest.raises(KeyboardInterrupt) as stop:
        measure("step", KeyboardInterrupt())
    assert not isinstance(stop.value, MeasurementInterrupted)


def test_ctrl_c_with_too_little_to_put_together_is_just_that(measure):
    with pytest.raises(KeyboardInterrupt) as stop:
        measure("mixes", KeyboardInterrupt(), empty=True)
    assert not isinstance(stop.value, MeasurementInterrupted)


def test_a_record_that_lacks_a_part_without_a_failure_is_refused(measure):
    with pytest.raises(FormatError, match="ended before part 'mixes'"):
        measure(empty=True)


def test_integrated_power_is_labelled(measure):
    trace = measure(counter=Capability.NOT_SUPPORTED)
    assert any("no energy counter here" in note for note in trace.notes)


def test_one_pair_of_a_sweep_is_measured_shorter():
    one, many = how_much(set_clocks=False, deadline_s=60.0), how_much(set_clocks=True, repeats=5)
    assert one.deadline_s == 60.0
    assert (many.timeline_steps, many.mix_seconds < one.mix_seconds) == (5, True)
