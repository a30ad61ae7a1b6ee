"""A locked sweep, end to end: a real keeper process sets the fake driver's clocks, and gives back.

The instrument computes costs from the clocks that the driver reports, so a cell can only be right
if the keeper locked its pair.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from clockwright.data import trace as trace_file
from clockwright.data.errors import (
    InputError,
    KeeperError,
    MismatchError,
    NotSupportedError,
    ReadOnlyError,
    RightsError,
    WorkloadError,
)
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.clocks import LocalKeeper
from clockwright.tracer.gpu.protocol import ThrottleReason
from clockwright.tracer.gpu.simulated import open_simulated
from clockwright.tracer.recording.locked_sweep import LockedSweep, SweepOptions
from tests.fake_nvml.driver import Moment
from tests.tracer.clocks.processes import ROOT, kill, wait_until
from tests.tracer.recording.conftest import CORES, MEMS
from tests.tracer.recording.instruments import WORKLOAD, ScriptedInstrument, cost

ALL = tuple(ClockPair(core, mem) for mem in MEMS for core in CORES)
NEVER = SweepOptions(target_error=1e-9)  # goes on until its allowance is spent


def measured_pairs(trace):
    rows = trace.pairs["provenance"] == "measured"
    return [
        p for p, is_in in zip(trace.clock_pairs(), rows, strict=True) if is_in and p != GOVERNOR
    ]


def test_a_quarter_of_the_pairs_is_measured_and_the_rest_fitted(fake, gpu, keeper, tmp_path):
    instrument = ScriptedInstrument(gpu)
    trace = LockedSweep(instrument, tmp_path / "S", NEVER, keeper=keeper).run()
    measured = measured_pairs(trace)
    assert len(measured) == len(ALL) // 4
    assert instrument.clocks == [(1980, 3201), *measured]  # locked while it measured
    assert set(trace.clock_pairs()) == {GOVERNOR, *ALL}
    cells = trace.profile[trace.profile["provenance"] == "fitted"]
    assert set(cells["pair"]) == set(range(1 + len(measured), 1 + len(ALL)))
    truth = [cost(p.core_mhz, p.mem_mhz) for p in trace.clock_pairs()[1:]]
    for column, part in (("duration_ns", 0), ("energy_mj", 1)):
        want = np.stack([cell[part] for cell in truth], axis=1)
        error = np.abs(trace.grid(column)[:, 1:] / want - 1)
        assert (error[:, : len(measured)] == 0).all()
        assert np.median(error[:, len(measured) :]) < 0.02
    assert trace.baseline.pair == GOVERNOR
    assert trace.baseline.time_ns == pytest.approx(cost(1980, 3201)[0] @ (3, 2, 2))
    assert trace.partial is None
    assert any("4 of 16 clock pairs were measured" in note for note in trace.notes)
    assert fake.is_pristine


def test_a_whole_step_is_known_only_where_it_was_run(gpu, keeper, tmp_path):
    trace = LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", NEVER, keeper=keeper).run()
    fitted = (trace.pairs["provenance"] == "fitted").to_numpy(dtype=bool)
    assert (trace.pairs["step_time_ns"].isna().to_numpy() == fitted).all()
    rows = trace.profile["provenance"] == "fitted"
    assert trace.profile[rows]["n"].isna().all()
    assert (trace.profile[rows]["duration_sd_ns"] > 0).all()


def test_it_stops_at_the_stated_error(gpu, keeper, tmp_path):
    eager = SweepOptions(target_error=0.5)
    trace = LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", eager, keeper=keeper).run()
    assert len(measured_pairs(trace)) == 3


@pytest.mark.parametrize("options", [SweepOptions(exhaustive=True), SweepOptions(pairs=ALL[2:8])])
def test_exhaustive_and_chosen_sweeps_measure_every_pair(gpu, keeper, tmp_path, options):
    trace = LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", options, keeper=keeper).run()
    assert trace.clock_pairs() == (GOVERNOR, *(options.pairs or ALL))
    assert set(trace.profile["provenance"]) == {"measured"}


def interrupt_at(number, error):
    def before(count):
        if count == number:
            raise error

    return before


def test_an_interrupted_sweep_keeps_what_it_has_and_goes_on(fake, gpu, keeper, tmp_path):
    broken = ScriptedInstrument(gpu, before=interrupt_at(3, KeyboardInterrupt()))
    sweep = LockedSweep(broken, tmp_path / "S", NEVER, keeper=keeper)
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    assert fake.is_pristine
    kept = sweep.trace()
    assert kept.partial == "interrupted after 2 of the sweep's pairs"
    assert len(measured_pairs(kept)) == 2
    again = ScriptedInstrument(gpu)
    trace = LockedSweep(again, tmp_path / "S", NEVER, keeper=keeper).run()
    assert len(again.clocks) == 2  # neither the baseline nor the two pairs a second time
    assert measured_pairs(trace)[:2] == measured_pairs(kept)
    assert len(measured_pairs(trace)) == 4
    assert trace.partial is None


def test_a_step_that_fails_leaves_what_was_measured(fake, gpu, keeper, tmp_path):
    failure = WorkloadError("workload train.py:step failed: ValueError: bad batch")
    sweep = LockedSweep(
        ScriptedInstrument(gpu, before=interrupt_at(2, failure)), tmp_path / "S", keeper=keeper
    )
    with pytest.raises(WorkloadError, match="bad batch"):
        sweep.run()
    assert fake.is_pristine
    assert "bad batch" in sweep.trace().partial


def test_nothing_is_kept_before_the_baseline_is(gpu, keeper, tmp_path):
    failure = WorkloadError("workload train.py:step failed: ValueError: bad batch")
    sweep = LockedSweep(
        ScriptedInstrument(gpu, before=interrupt_at(0, failure)), tmp_path / "S", keeper=keeper
    )
    with pytest.raises(WorkloadError):
        sweep.run()
    assert sweep.trace() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fake: {**WORKLOAD, "fingerprint": "0" * 64}, "another workload .fingerprint was"),
        (lambda fake: fake.set(power_limit_mw=500_000), "another gpu .power_limit_w was 700.0"),
    ],
)
def test_a_changed_step_or_gpu_is_not_mixed_in(fake, gpu, keeper, tmp_path, change, message):
    LockedSweep(
        ScriptedInstrument(gpu), tmp_path / "S", SweepOptions(pairs=ALL[:1]), keeper=keeper
    ).run()
    workload = change(fake) or WORKLOAD
    from clockwright.tracer.gpu.select import open_gpu

    with open_gpu("nvml:0") as now, pytest.raises(MismatchError, match=message):
        LockedSweep(ScriptedInstrument(now, workload=workload), tmp_path / "S", keeper=keeper)


def test_a_lock_that_does_not_hold_is_told_and_its_pair_left_out(fake, gpu, keeper, tmp_path):
    fake.set(core_lock_holds=0)
    options = SweepOptions(pairs=ALL[:3])  # the governor runs at the first, which thus "holds"
    trace = LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", options, keeper=keeper).run()
    assert trace.clock_pairs() == (GOVERNOR, ALL[0])
    told = [note for note in trace.notes if "is left out, its lock does not hold" in note]
    assert [note.split()[0] for note in told] == [str(pair) for pair in ALL[1:3]]
    assert fake.is_pristine


def test_a_lock_reported_held_and_sensed_elsewhere_is_left_out(gpu, keeper, tmp_path):
    top = SweepOptions(pairs=[ALL[0], ALL[3]])
    instrument = ScriptedInstrument(gpu, sensed_mhz=lambda core: min(core, 1905.0))
    trace = LockedSweep(instrument, tmp_path / "S", top, keeper=keeper).run()
    assert trace.clock_pairs() == (GOVERNOR, ALL[3])
    assert any("sensed at 1905 MHz, and the driver gives no reason" in n for n in trace.notes)


def test_a_planned_sweep_goes_round_pairs_that_do_not_hold(gpu, keeper, tmp_path):
    instrument = ScriptedInstrument(gpu, sensed_mhz=lambda core: min(core, 1500.0))
    trace = LockedSweep(instrument, tmp_path / "S", NEVER, keeper=keeper).run()
    measured = measured_pairs(trace)
    assert all(pair.core_mhz <= 1500 for pair in measured)
    out = [note.split()[0] for note in trace.notes if "is left out" in note]
    assert len(out) + len(measured) <= len(ALL) // 4
    assert not set(out) & {str(pair) for pair in trace.clock_pairs()}


def test_a_pair_under_the_power_cap_is_kept_and_marked(fake, gpu, keeper, tmp_path):
    fake.set_moments([Moment(reasons=ThrottleReason.SW_POWER_CAP, core_cap_mhz=1400)])
    trace = LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", NEVER, keeper=keeper).run()
    pairs = dict(zip(trace.clock_pairs(), trace.pairs.itertuples(), strict=True))
    high = [p for p in measured_pairs(trace) if p.core_mhz > 1410]
    assert high, "the planner visits high clocks"
    for pair in high:
        assert pairs[pair].sensed_core_mhz == 1400
        assert pairs[pair].throttle_reasons == ThrottleReason.SW_POWER_CAP
        assert any(f"lock {pair}" in n and "under the power cap" in n for n in trace.notes)


def test_heat_is_waited_out_unlocked_and_told(fake, gpu, keeper, tmp_path):
    hot = ThrottleReason.HW_THERMAL
    fake.set_moments([Moment(reasons=hot, temperature_c=90, core_cap_mhz=900)])
    options = SweepOptions(pairs=ALL[:2], cool_s=0.05)
    trace = LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", options, keeper=keeper).run()
    assert any("throttled for heat at every pair" in note for note in trace.notes)
    assert list(trace.pairs["throttle_reasons"]) == [hot] * 3


def test_another_algorithm_at_another_clock_is_told_and_never_merged(gpu, keeper, tmp_path):
    def name_of(core, mem, name):
        return "gemm_splitk" if name == "gemm" and mem == 2201 else name

    options = SweepOptions(pairs=[ALL[0], ALL[-1]])
    instrument = ScriptedInstrument(gpu, name_of=name_of)
    trace = LockedSweep(instrument, tmp_path / "S", options, keeper=keeper).run()
    assert list(trace.signatures["name"]) == ["gemm", "copy", "norm"]
    grid = trace.grid("duration_ns")
    assert np.isnan(grid[0, 2])
    assert np.isfinite(grid[1:, 2]).all()
    assert any(
        "kernel 0 is gemm_splitk, where the baseline has gemm; 1 of 3 signatures" in note
        for note in trace.notes
    )


def test_a_signature_without_a_cell_somewhere_is_fitted_to_those_it_has(gpu, keeper, tmp_path):
    odd = []

    def name_of(core, mem, name):
        if len(odd) == 0 and (core, mem) != (1980, 3201):
            odd.append((core, mem))
        return "copy2" if name == "copy" and (core, mem) in odd else name

    trace = LockedSweep(
        ScriptedInstrument(gpu, name_of=name_of), tmp_path / "S", NEVER, keeper=keeper
    ).run()
    time_ns = trace.grid("duration_ns")
    holes = np.argwhere(np.isnan(time_ns))
    assert len(holes) == 1
    assert trace.clock_pairs()[holes[0][1]] == ClockPair(*odd[0])


def test_a_step_that_changes_its_shape_is_refused(fake, gpu, keeper, tmp_path):
    def name_of(core, mem, name):
        return name if core == 1980 else f"{name} of another shape"

    sweep = LockedSweep(
        ScriptedInstrument(gpu, name_of=name_of),
        tmp_path / "S",
        SweepOptions(pairs=ALL[3:5]),
        keeper=keeper,
    )
    with pytest.raises(WorkloadError, match="the step has changed: give it batches of one shape"):
        sweep.run()
    assert fake.is_pristine


def test_time_runs_out_between_pairs_and_the_trace_says_so(gpu, keeper, tmp_path):
    options = SweepOptions(exhaustive=True, deadline_s=1e-6)
    trace = LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", options, keeper=keeper).run()
    assert "stopped by its time limit" in trace.partial
    assert "0 of 16 pairs are measured" in trace.partial


def test_without_the_right_it_is_told_before_anything_is_measured(
    fake_nvml, fake, gpu, keeper, tmp_path
):
    fake_nvml.allow_setters("nobody")
    instrument = ScriptedInstrument(gpu)
    with pytest.raises(RightsError, match=r"CAP_SYS_ADMIN.*clock keeper as root"):
        LockedSweep(instrument, tmp_path / "S", keeper=keeper).run()
    assert instrument.clocks == []


def test_read_only_refuses_before_anything_is_written(gpu, tmp_path, monkeypatch, fake_nvml):
    monkeypatch.setenv("CLOCKWRIGHT_READ_ONLY", "1")
    with pytest.raises(ReadOnlyError, match="CLOCKWRIGHT_READ_ONLY is set: no clock is locked"):
        LockedSweep(ScriptedInstrument(gpu), tmp_path / "S")
    assert not (tmp_path / "S").exists()
    assert fake_nvml.setters() == []


def test_senseless_requests_are_refused(fake, gpu, tmp_path):
    with pytest.raises(InputError, match=r"lists no pair 1234/3201; it lists 16, such as"):
        LockedSweep(
            ScriptedInstrument(gpu), tmp_path / "S", SweepOptions(pairs=[ClockPair(1234, 3201)])
        )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="is not a clockwright sweep"):
        LockedSweep(ScriptedInstrument(gpu), tmp_path / "mine")


def test_a_gpu_that_lists_no_clocks_cannot_be_swept(fake, tmp_path):
    from clockwright.tracer.gpu.select import open_gpu

    fake.set_clocks([])
    with open_gpu("nvml:0") as bare, pytest.raises(NotSupportedError, match="lists no clock pair"):
        LockedSweep(ScriptedInstrument(bare), tmp_path / "S")


def test_a_keeper_that_dies_ends_the_sweep_and_gives_back(fake, gpu, keeper, tmp_path):
    def before(count):
        if count == 1:
            kill(keeper.keeper_pid)
            wait_until(lambda: fake.is_pristine, "the guardian gives back")

    sweep = LockedSweep(ScriptedInstrument(gpu, before=before), tmp_path / "S")
    sweep._keeper_given = keeper
    with pytest.raises(KeeperError, match="clock keeper is gone"):
        sweep.run()
    assert "clock keeper is gone" in sweep.trace().partial


def test_a_killed_sweep_leaves_no_lock_and_a_second_run_goes_on(fake, gpu, keeper, tmp_path):
    folder = tmp_path / "S"
    command = [sys.executable, "-m", "tests.tracer.recording.instruments", str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        while json.loads(process.stdout.readline()) != {"measuring": 2}:
            pass
        assert fake.core_lock is not None
        kill(process.pid)
        process.wait()
        journals = tmp_path / "state"
        wait_until(
            lambda: fake.is_pristine and not list(journals.glob("*.json")), "the keeper gives back"
        )
    finally:
        process.kill()
        process.communicate()
    again = ScriptedInstrument(gpu)
    trace = LockedSweep(again, folder, NEVER, keeper=keeper).run()
    assert len(again.clocks) == 3
    assert len(measured_pairs(trace)) == 4


def test_half_a_result_is_not_taken_for_one(gpu, keeper, tmp_path):
    options = SweepOptions(pairs=ALL[:1])
    LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", options, keeper=keeper).run()
    part = tmp_path / "S" / "pairs" / ".1785-3201.x1y2"
    part.mkdir()
    (part / "trace.json").write_text("{")
    again = ScriptedInstrument(gpu)
    LockedSweep(again, tmp_path / "S", options, keeper=keeper).run()
    assert again.clocks == []
    assert not part.exists()


def test_a_simulated_gpu_is_swept_through_its_local_keeper(tmp_path):
    simulated = open_simulated("rtx3080ti", seed=1)
    pairs = [ClockPair(core, mem) for mem in (9501, 5001) for core in (1800, 1500, 1200)]
    instrument = ScriptedInstrument(simulated)
    with LocalKeeper(simulated) as keeper:
        LockedSweep(instrument, tmp_path / "S", SweepOptions(pairs=pairs), keeper=keeper).run()
    assert simulated.locked() is None


def test_the_trace_survives_being_written(gpu, keeper, tmp_path):
    trace = LockedSweep(ScriptedInstrument(gpu), tmp_path / "S", NEVER, keeper=keeper).run()
    trace_file.write(trace, tmp_path / "T")
    assert trace_file.read(tmp_path / "T").clock_pairs() == trace.clock_pairs()


def test_progress_names_the_pair_and_the_stated_error(gpu, keeper, tmp_path):
    seen = []
    LockedSweep(
        ScriptedInstrument(gpu), tmp_path / "S", NEVER, keeper=keeper, on_progress=seen.append
    ).run()
    assert [progress.measured for progress in seen] == [0, 0, 1, 2, 3]
    assert seen[0].pair == GOVERNOR
    assert seen[-1].stated_error > 0
    assert {progress.most for progress in seen} == {4}
