"""From a raw folder to a trace: parts that add up, and rows only where clocks were sensed."""

import json

import numpy as np
import pytest

from clockwright.data.errors import DeviceError, FormatError
from clockwright.data.units import GOVERNOR
from clockwright.tracer.gpu.protocol import GpuInfo
from clockwright.tracer.measure.timeline import read_timeline
from clockwright.tracer.recording.assemble import assemble
from tests.tracer.recording.folders import (
    CLOCK_MHZ,
    EXPONENT,
    NAMES,
    SLOPE,
    STEP_MJ,
    TIME_US,
    energy_mj,
    profile,
    raw_folder,
    step_us,
)

GPU = GpuInfo(name="NVIDIA H200", uuid="GPU-0", driver="580", power_limit_w=700.0)
WORKLOAD = {"name": "three kernels", "options": {"batch": 4}, "fingerprint": "f"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Identities as the timeline reader gives them."""
    path = profile(tmp_path_factory.mktemp("keys") / "t.json", [CLOCK_MHZ] * 2)
    timeline = read_timeline(path)
    identities = timeline.keys()
    return {name: list(key) for name, key in zip(NAMES, identities, strict=True)}


@pytest.fixture
def made(tmp_path, keys):
    def make(*, sensed=True, **options):
        return assemble(
            raw_folder(tmp_path, keys, **options), workload=WORKLOAD, gpu=GPU, sensed=sensed
        )

    return make


def sums(trace):
    count = np.bincount(trace.timeline["signature"])
    return count @ trace.grid("duration_ns"), count @ trace.grid("energy_mj")


def test_parts_add_up_to_the_whole_step(made):
    trace = made(longer=1.02)
    time_ns, energy = sums(trace)
    gaps_ns = trace.gpu["composition"]["gaps_ns"]
    idle_mj = gaps_ns * trace.pairs["idle_power_w"][0] * 1e-6
    assert time_ns[0] + gaps_ns == pytest.approx(trace.baseline.time_ns)
    assert energy[0] + idle_mj == pytest.approx(trace.baseline.energy_mj)
    assert trace.baseline.energy_mj == pytest.approx(STEP_MJ)


def test_how_far_they_were_before_is_told(made):
    composition = made(longer=1.02).gpu["composition"]
    gap_after_us = 20  # a step's last kernel has none within it
    profiled = (step_us(CLOCK_MHZ) - gap_after_us) / step_us(CLOCK_MHZ)
    assert composition["time"] == pytest.approx(profiled / 1.02 - 1, abs=1e-6)
    assert abs(composition["energy"]) < 0.01
    assert composition["time_from_mixes"] == pytest.approx(profiled / 1.02 - 1, abs=5e-3)
    assert composition["known_energy_share"] == 1
    assert composition["drift"] == 0


def test_energies_are_shared_by_operator(made):
    trace = made()
    energies = dict(zip(trace.signatures["name"], trace.grid("energy_mj")[:, 0], strict=True))
    assert energies["gemm"] / energies["copy"] == pytest.approx(
        energy_mj("gemm") / energy_mj("copy"), rel=0.02
    )


def test_rows_lie_within_the_sensed_clocks(made):
    trace = made()
    pairs = trace.clock_pairs()
    assert pairs[0] == GOVERNOR
    clocks = [pair.core_mhz for pair in pairs[1:]]
    assert min(clocks) >= 1490 and max(clocks) <= 1970
    assert all(clock % 15 == 0 for clock in clocks)  # such as the driver lists
    assert set(trace.pairs["provenance"][1:]) == {"sensed"}
    assert trace.pairs["provenance"][0] == "measured"
    assert trace.provenance == "sensed"
    assert not trace.simulated


def test_cells_follow_each_kernels_own_response(made):
    trace = made()
    clocks = trace.pairs["core_mhz"].to_numpy(dtype=float, na_value=np.nan)[1:]
    for row, name in enumerate(trace.signatures["name"]):
        x = clocks / CLOCK_MHZ
        time = trace.grid("duration_ns")[row]
        energy = trace.grid("energy_mj")[row]
        np.testing.assert_allclose(time[1:] / time[0], x ** SLOPE[name], rtol=5e-3)
        np.testing.assert_allclose(energy[1:] / energy[0], x ** EXPONENT[name], rtol=2e-2)
    assert trace.grid("duration_ns")[0, 0] == pytest.approx(TIME_US["gemm"] * 1e3, rel=0.1)


def test_clocks_above_the_steps_own_are_capped_for_a_whole_step(made):
    trace = made()
    for row in trace.pairs.iloc[1:].itertuples():
        assert bool(row.throttle_reasons & 4) == (row.core_mhz > CLOCK_MHZ)
    assert (trace.grid("throttle_reasons")[:, 1:] == 0).all()


def test_without_sensed_rows_there_is_the_one_that_was_measured(made):
    trace = made(sensed=False)
    assert trace.clock_pairs() == (GOVERNOR,)
    assert trace.provenance == "measured"


def test_without_profiles_at_other_clocks_a_note_says_so(made):
    trace = made(ambient=False)
    assert trace.clock_pairs() == (GOVERNOR,)
    assert any("no sensed rows" in note for note in trace.notes)


def test_a_kernel_without_an_operator_takes_the_mean_power_and_is_told(tmp_path, keys):
    folder = raw_folder(tmp_path, keys)
    record = json.loads((folder / "raw.json").read_text())
    record["loops"][1]["kernels"] = []
    (folder / "raw.json").write_text(json.dumps(record))
    trace = assemble(folder, workload=WORKLOAD, gpu=GPU)
    assert trace.gpu["composition"]["known_energy_share"] < 1
    assert any("launched by no operator" in note for note in trace.notes)
    assert "time_from_mixes" not in trace.gpu["composition"]
    assert np.isfinite(trace.grid("energy_mj")).all()


def test_a_short_measurement_is_marked(made):
    trace = made(partial="12 of 24 mixes measured in the time given")
    assert trace.partial == "12 of 24 mixes measured in the time given"


def changed(folder, change):
    record = json.loads((folder / "raw.json").read_text())
    change(record)
    (folder / "raw.json").write_text(json.dumps(record))
    return assemble(folder, workload=WORKLOAD, gpu=GPU)


def test_a_profile_that_cannot_be_used_is_named_and_the_rest_kept(tmp_path, keys):
    folder = raw_folder(tmp_path, keys)
    (folder / "ambient-0.json").write_text('{"traceEv')
    (folder / "ambient-1.json").unlink()
    trace = assemble(folder, workload=WORKLOAD, gpu=GPU)
    assert trace.provenance == "sensed"
    told = [note for note in trace.notes if "is left out" in note]
    assert [note.split("'")[1] for note in told] == ["load 0", "load 1"]
    assert all(str(tmp_path) not in note for note in told)
    assert min(pair.core_mhz for pair in trace.clock_pairs()[1:]) >= 1690


def test_without_any_usable_profile_the_measured_row_is_kept(tmp_path, keys):
    folder = raw_folder(tmp_path, keys)
    for path in folder.glob("ambient-*.json"):
        path.write_text("{}")
    trace = assemble(folder, workload=WORKLOAD, gpu=GPU)
    assert trace.clock_pairs() == (GOVERNOR,)
    assert sum("is left out" in note for note in trace.notes) == 5


def test_a_clock_that_hardly_moved_gives_no_rows(tmp_path, keys):
    def still(record):
        record["ambient"] = record["ambient"][2:3]

    trace = changed(raw_folder(tmp_path, keys), still)
    assert trace.clock_pairs() == (GOVERNOR,)
    assert any("too little to tell responses" in note for note in trace.notes)


def test_a_driver_that_lists_no_clocks_leaves_them_evenly_spread(made):
    clocks = [pair.core_mhz for pair in made(core_clocks_mhz=[]).clock_pairs()[1:]]
    assert len(clocks) == 13
    assert np.ptp(np.diff(clocks)) <= 2  # whole MHz, the ends rounded inwards


def test_drift_and_both_windows_are_in_the_whole(tmp_path, keys):
    def later(record):
        record["again"]["plain"]["time_ns"] *= 1.01

    trace = changed(raw_folder(tmp_path, keys), later)
    assert trace.gpu["composition"]["drift"] == pytest.approx(0.01)
    assert trace.baseline.time_ns == pytest.approx(step_us(CLOCK_MHZ) * 1e3 * 1.005)
    assert trace.pairs["step_n"][0] == 140


def test_a_step_measured_once_has_no_drift(tmp_path, keys):
    trace = changed(raw_folder(tmp_path, keys), lambda record: record.pop("again"))
    assert "drift" not in trace.gpu["composition"]
    assert trace.pairs["step_n"][0] == 70


def test_a_driver_that_reports_no_clock_leaves_the_sensed_one(tmp_path, keys):
    def silent(record):
        for entry in [record["step"]["plain"], record["again"]["plain"], *record["mixes"]]:
            entry["window"] |= {"core_mhz": None, "throttle_reasons": None, "temperature_c": None}
        for part in ("step", "again"):
            record[part]["probed"]["sensed_mhz"] = 1710.0

    folder = raw_folder(tmp_path, keys)
    trace = changed(folder, silent)
    assert trace.pairs["sensed_core_mhz"][0] == 1710.0
    assert trace.pairs["temperature_c"].isna().all()
    assert trace.pairs["throttle_reasons"].isna()[0]

    def nothing(record):
        for part in ("step", "again"):
            record[part]["probed"]["sensed_mhz"] = None

    with pytest.raises(FormatError, match="neither a reported nor a sensed clock"):
        changed(folder, nothing)


def test_a_step_that_no_operator_launches_is_refused(tmp_path, keys):
    def unknown(record):
        for loop in record["loops"]:
            loop["kernels"] = [[["other", *key[1:]], ns] for key, ns in loop["kernels"]]

    with pytest.raises(DeviceError, match="launches any kernel of the step"):
        changed(raw_folder(tmp_path, keys), unknown)


def test_too_few_mixes_are_refused(tmp_path, keys):
    def cut(record):
        record["mixes"] = record["mixes"][:2]

    with pytest.raises(DeviceError, match="2 mixes were measured for 2 operators"):
        changed(raw_folder(tmp_path, keys), cut)


def test_a_record_without_its_timeline_says_so(tmp_path, keys):
    folder = raw_folder(tmp_path, keys)
    (folder / "timeline.json").unlink()
    with pytest.raises(FormatError, match="before part 'timeline'"):
        assemble(folder, workload=WORKLOAD, gpu=GPU)


@pytest.mark.parametrize("text", ["[1]", "7", '{"step": ', ""])
def test_a_damaged_record_is_refused(tmp_path, text):
    (tmp_path / "raw.json").write_text(text)
    with pytest.raises(FormatError, match=r"raw\.json: no record"):
        assemble(tmp_path, workload=WORKLOAD, gpu=GPU)


@pytest.mark.parametrize("part", ["step", "loops", "mixes"])
def test_a_record_that_ended_early_says_before_what(tmp_path, keys, part):
    folder = raw_folder(tmp_path, keys, **{part: []})
    with pytest.raises(FormatError, match=f"before part '{part}'"):
        assemble(folder, workload=WORKLOAD, gpu=GPU)


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(FormatError, match=r"raw\.json: no record"):
        assemble(tmp_path, workload=WORKLOAD, gpu=GPU)
