"""Blocks are interleaved, looked at a few times, and judged when a rule says so."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from clockwright.data.errors import InputError
from clockwright.data.report import BASELINE, SCHEDULE, SINGLE
from clockwright.data.schedule import Predicted
from clockwright.data.units import GOVERNOR
from clockwright.replay.plan import constant_plan
from clockwright.replay.verify import Arm, BlockReading, Settings, verify
from tests.replay.builders import A, B

ARMS = [
    Arm(BASELINE, constant_plan(GOVERNOR, 10)),
    Arm(SCHEDULE, constant_plan(A, 10)),
    Arm(SINGLE, constant_plan(B, 10)),
]


class ScriptedPlayer:
    """Steps of known time and energy, with noise and a common drift."""

    def __init__(
        self, slowdown=0.004, saving=0.1, noise=0.0005, drift=0.0, seed=0, energy=True
    ) -> None:
        self.at_ns, self.order, self.drift = 0, [], drift
        self._by_arm = {
            BASELINE: (1.0, 1.0),
            SCHEDULE: (1 + slowdown, 1 - saving),
            SINGLE: (1.02, 0.95),
        }
        self._noise, self._rng, self._energy = noise, np.random.default_rng(seed), energy

    def now_ns(self) -> int:
        return self.at_ns

    def play(self, arm: Arm, block_ns: int) -> BlockReading:
        self.order.append(arm.name)
        time, energy = self._by_arm[arm.name]
        common = 1 + self.drift * len(self.order)
        start_ns = self.at_ns
        self.at_ns += block_ns
        return BlockReading(
            steps=5,
            start_ns=start_ns,
            time_ns=1e8 * time * common * (1 + self._noise * self._rng.standard_normal()),
            energy_mj=2e4 * energy * (1 + self._noise * self._rng.standard_normal())
            if self._energy
            else None,
        )

    def requests(self) -> dict[str, int]:
        return {"issued": 7}


def _verify(player, budget=0.006, **settings):
    return verify(
        player,
        ARMS,
        max_slowdown=budget,
        predicted=Predicted(1.0, 1.0, 0.004, 0.1),
        settings=Settings(**settings),
    )


def test_each_round_runs_every_arm_once_in_an_order_of_its_own():
    player = ScriptedPlayer()
    result = _verify(player)
    rounds = [tuple(player.order[at : at + 3]) for at in range(0, len(player.order), 3)]
    assert all(Counter(row) == Counter([BASELINE, SCHEDULE, SINGLE]) for row in rounds)
    assert len(set(rounds)) > 3
    assert [block.arm for block in result.blocks] == player.order


def test_a_schedule_within_the_budget_is_called_within():
    result = _verify(ScriptedPlayer(slowdown=0.004))
    assert (result.verdict, result.stopped) == ("within", "decided")
    assert result.prediction is not None
    assert result.prediction.time_agrees
    assert result.requests == {"issued": 7}


def test_a_schedule_over_the_budget_is_called_over():
    assert _verify(ScriptedPlayer(slowdown=0.008)).verdict == "over"


def test_drift_common_to_a_round_cancels():
    result = _verify(ScriptedPlayer(slowdown=0.004, drift=0.0002, noise=0.0002))
    slowdown = result.comparisons[0].slowdown
    assert slowdown.value == pytest.approx(0.004, abs=0.0005)


def test_an_interval_that_straddles_the_budget_is_ambiguous_when_rounds_are_up():
    result = _verify(ScriptedPlayer(slowdown=0.006, noise=0.003), max_rounds=24)
    assert (result.verdict, result.stopped) == ("ambiguous", "rounds")
    assert len(result.blocks) == 24 * 3


def test_measuring_stops_when_time_is_up_after_one_look():
    result = _verify(
        ScriptedPlayer(slowdown=0.006, noise=0.003),
        block_ns=1_000_000_000,
        time_limit_ns=5_000_000_000,
    )
    assert (result.verdict, result.stopped) == ("ambiguous", "time")
    assert len(result.blocks) == 6 * 3
    assert result.comparisons[0].slowdown.low is not None


def test_an_interval_narrower_than_what_counts_ends_the_search():
    result = _verify(ScriptedPlayer(slowdown=0.006, noise=0.0), budget=0.005)
    assert (result.verdict, result.stopped) == ("over", "narrow")
    assert len(result.blocks) == 12 * 3


def test_a_far_too_slow_schedule_need_not_be_known_finely():
    result = _verify(ScriptedPlayer(slowdown=0.3, noise=0.01))
    assert (result.verdict, result.stopped) == ("over", "decided")
    assert len(result.blocks) == 12 * 3


def test_without_energy_readings_only_time_is_judged():
    result = _verify(ScriptedPlayer(energy=False))
    assert result.verdict == "within"
    assert all(entry.saving is None for entry in result.comparisons)


def test_equal_arms_show_no_difference():
    result = verify(
        ScriptedPlayer(slowdown=0.0, saving=0.0),
        ARMS[:2],
        max_slowdown=0.006,
        settings=Settings(),
    )
    assert result.comparisons[0].difference == "no difference"
    assert result.verdict == "within"


def test_equal_seeds_give_equal_results():
    assert _verify(ScriptedPlayer()) == _verify(ScriptedPlayer())


def test_a_replay_needs_a_baseline_and_a_schedule_once():
    with pytest.raises(InputError, match="baseline with a schedule"):
        verify(ScriptedPlayer(), ARMS[1:], max_slowdown=0.01)
    with pytest.raises(InputError, match="baseline with a schedule"):
        verify(ScriptedPlayer(), [*ARMS, ARMS[1]], max_slowdown=0.01)


@pytest.mark.parametrize(
    "fields",
    [{"precision": 0}, {"confidence": 1}, {"block_ns": 0}, {"max_rounds": 5}, {"finest": 2}],
)
def test_settings_are_checked(fields):
    with pytest.raises(InputError):
        Settings(**fields)


def test_looks_are_few_and_end_at_the_last_round():
    assert Settings(max_rounds=96).looks() == (12, 24, 48, 96)
    assert Settings(max_rounds=100).looks() == (12, 24, 48, 96, 100)
    assert Settings(max_rounds=8).looks() == (8,)
