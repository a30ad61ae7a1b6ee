"""Arms are played on the simulated GPU with its own switches and noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from clockwright.data.errors import InputError, LockNotHeldError, RightsError
from clockwright.data.report import BASELINE, SCHEDULE, SINGLE
from clockwright.data.trace import Baseline, Trace
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.replay.plan import constant_plan, plan_segments
from clockwright.replay.simulated import StepPlayer, table_player
from clockwright.replay.source import sequence_of_step
from clockwright.replay.verify import Arm
from clockwright.tracer.gpu.simulated import Faults, Noise, open_simulated
from clockwright.tracer.record_simulated import record_simulated
from tests.replay.builders import phase_rows, small_step

FAST, SLOW = ClockPair(1695, 9251), ClockPair(1050, 9501)
BLOCK_NS = 300_000_000


def _player(**options) -> StepPlayer:
    options = {"seed": 1, "switch": "free", "noise": Noise.none()} | options
    return StepPlayer(open_simulated("rtx3080ti", **options), small_step())


def _phases(lead: int = 0):
    return plan_segments(phase_rows(FAST, SLOW, lead=lead), 40)


def test_every_kernel_runs_at_the_pair_of_its_segment_when_switches_are_free():
    player = _player()
    plan = _phases()
    player.play(Arm(SCHEDULE, plan), BLOCK_NS)
    run = player.step(plan)
    ran = list(zip(run.core_mhz.tolist(), run.mem_mhz.tolist(), strict=True))
    assert ran == ([tuple(FAST)] * 5 + [tuple(SLOW)] * 5) * 4


def test_stalls_are_paid_for_each_trigger():
    free, stalled = _player(), _player(switch="stall")
    arm = Arm(SCHEDULE, _phases())
    quick, slow = (p.play(arm, BLOCK_NS) for p in (free, stalled))
    # 8 switches of core and memory together: 20 + 60 us each, give or take their scatter.
    assert slow.time_ns - quick.time_ns == pytest.approx(8 * 80e3, rel=0.2)
    assert slow.switches == 8 * slow.steps


def test_a_dry_replay_counts_triggers_and_changes_nothing():
    gpu = open_simulated("rtx3080ti", noise=Noise.none(), switch="free")
    player = StepPlayer(gpu, small_step(), dry=True)
    dry = player.play(Arm(SCHEDULE, _phases()), BLOCK_NS)
    base = player.play(Arm(BASELINE, constant_plan(GOVERNOR, 40)), BLOCK_NS)
    assert dry.time_ns == pytest.approx(base.time_ns, rel=0.02)
    assert gpu.locked() is None
    assert set(player.requests()) == {"dry"}


def test_a_block_lasts_as_long_as_asked_in_whole_steps():
    reading = _player().play(Arm(SINGLE, constant_plan(SLOW, 40)), BLOCK_NS)
    assert reading.steps * reading.time_ns >= BLOCK_NS
    assert (reading.steps - 1) * reading.time_ns < BLOCK_NS
    assert reading.core_mhz == SLOW.core_mhz


def test_a_step_that_is_not_cyclic_ends_at_the_governor():
    player = _player()
    plan = plan_segments(phase_rows(FAST, SLOW), 40, cyclic=False)
    player.play(Arm(SCHEDULE, plan), BLOCK_NS)
    assert player.gpu.locked() is None


@pytest.mark.parametrize("plan", [constant_plan(SLOW, 40), _phases()])
def test_a_lock_that_returns_success_and_does_not_hold_is_reported(plan):
    player = _player(faults=Faults(locks_hold=False))
    with pytest.raises(LockNotHeldError, match="returned success"):
        player.play(Arm(SINGLE, plan), BLOCK_NS)
    assert player.gpu.locked() is None


def test_missing_rights_are_told_and_nothing_is_set():
    player = _player(faults=Faults(rights=False))
    with pytest.raises(RightsError, match="may not lock clocks"):
        player.play(Arm(SINGLE, constant_plan(SLOW, 40)), BLOCK_NS)
    assert player.gpu.locked() is None


def test_a_clock_kept_low_by_the_power_cap_is_no_broken_lock():
    reading = _player().play(Arm(SINGLE, constant_plan(ClockPair(1950, 9501), 40)), BLOCK_NS)
    assert reading.core_mhz is not None
    assert reading.core_mhz < 1950
    assert reading.throttle_reasons


def test_a_plan_for_another_step_is_refused():
    with pytest.raises(InputError, match="40"):
        _player().play(Arm(SINGLE, constant_plan(SLOW, 41)), BLOCK_NS)


def test_captured_work_has_the_fingerprint_of_the_trace_recorded_from_it():
    step = small_step()
    trace = record_simulated(
        step, open_simulated("rtx3080ti", seed=1), pairs=[SLOW, FAST], repeats=2
    )
    assert sequence_of_step(step).fingerprint == trace.fingerprint


def _table() -> Trace:
    return Trace(
        gpu={"name": "measured GPU"},
        workload={"name": "table"},
        provenance="imported",
        timeline=pd.DataFrame(
            {
                "index": range(4),
                "stream": 7,
                "start_ns": [0, 10_000_000, 30_000_000, 45_000_000],
                "duration_ns": [10_000_000, 20_000_000, 10_000_000, 20_000_000],
                "signature": [0, 1, 0, 1],
                "launches": [1, 2, 1, 2],
                "phase": "forward",
            }
        ),
        signatures=pd.DataFrame({"signature": range(2), "name": ["a", "b"]}),
        pairs=pd.DataFrame(
            {
                "pair": range(3),
                "core_mhz": pd.array([None, 1695, 1050], dtype="Int32"),
                "mem_mhz": pd.array([None, 9251, 9501], dtype="Int32"),
                "provenance": "imported",
            }
        ),
        profile=pd.DataFrame(
            {
                "signature": [0, 0, 0, 1, 1, 1],
                "pair": [0, 1, 2, 0, 1, 2],
                "duration_ns": [10e6, 11e6, 14e6, 10e6, 10.5e6, 12e6],
                "energy_mj": [3000.0, 2800.0, 2500.0, 2000.0, 1900.0, 1500.0],
                "provenance": "imported",
            }
        ),
        baseline=Baseline(GOVERNOR, None, None),
    ).checked()


def test_a_table_is_played_launch_by_launch_with_its_gaps():
    player = table_player(_table(), baseline=GOVERNOR, noise=Noise.none())
    base = player.play(Arm(BASELINE, constant_plan(GOVERNOR, 4)), BLOCK_NS)
    assert base.time_ns == pytest.approx(10e6 + 20e6 + 10e6 + 5e6 + 20e6, abs=2)
    slow = player.play(Arm(SINGLE, constant_plan(SLOW, 4)), BLOCK_NS)
    assert slow.time_ns == pytest.approx(14e6 + 24e6 + 14e6 + 5e6 + 24e6, abs=2)
    idle_mj = 5e6 * (1500.0 / 12e6)
    assert slow.energy_mj == pytest.approx(2 * 2500 + 4 * 1500 + idle_mj)


def test_pairs_that_lack_a_kernel_are_left_out_of_a_table():
    trace = _table()
    trace.profile.loc[5, "energy_mj"] = pd.NA
    player = table_player(trace, baseline=GOVERNOR)
    assert player.gpu.pairs() == (GOVERNOR, FAST)
    with pytest.raises(InputError, match="no whole row for the baseline"):
        table_player(trace, baseline=SLOW)
    trace.profile["energy_mj"] = np.nan
    with pytest.raises(InputError, match="no pair with time and energy"):
        table_player(trace.checked(), baseline=GOVERNOR)
