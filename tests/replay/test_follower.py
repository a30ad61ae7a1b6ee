"""The schedule is played on known steps only; everything else runs at the baseline."""

from __future__ import annotations

import pytest

from clockwright.data.schedule import Anchor, Segment
from clockwright.replay.follower import FollowerState, StepFollower
from clockwright.replay.plan import plan_segments
from clockwright.replay.triggers.eager import AnchoredTriggers
from tests.replay.builders import A, B, C

PAUSE = 99
ROWS = [
    Segment(0, 2, A, 0, Anchor("", "step_start")),
    Segment(2, 4, B, 2, Anchor("x", "backward_pre")),
    Segment(4, 6, C, 4, Anchor("", "optimizer_pre")),
]
WHOLE_STEP = [2, 3, 4]


class Harness:
    def __init__(self, rows=ROWS, cyclic=True) -> None:
        self.written: list[int] = []
        self.observed: list[str] = []
        self.follower = StepFollower(
            self.written.append,
            PAUSE,
            start_observing=lambda: self.observed.append("start"),
            end_observing=lambda: AnchoredTriggers(plan_segments(rows, 6, cyclic)),
        )

    def step(self, keys=("a",), edges=(("x", "backward_pre"), ("", "optimizer_pre"))) -> None:
        for key in keys:
            self.follower.forward(key, trains=True)
        for module, edge in edges:
            self.follower.edge(module, edge)
        self.follower.end()

    def ready(self, keys=("a",)) -> Harness:
        self.step(keys)
        self.step(keys)
        assert self.written == []
        return self

    def since(self) -> list[int]:
        written, self.written[:] = list(self.written), []
        return written


def test_two_steps_run_at_the_baseline_and_the_second_is_observed():
    harness = Harness()
    harness.step()
    assert harness.observed == []
    harness.step()
    assert harness.observed == ["start"]
    assert harness.written == []
    assert harness.follower.state is FollowerState.BETWEEN


def test_known_steps_write_every_trigger_in_order():
    harness = Harness().ready()
    harness.step()
    harness.step()
    assert harness.since() == WHOLE_STEP * 2
    assert harness.follower.played == 2


def test_an_evaluation_between_steps_goes_to_the_baseline_once():
    harness = Harness().ready()
    harness.step()
    harness.since()
    harness.follower.forward("a", trains=False)
    harness.follower.forward("a", trains=False)
    assert harness.since() == [PAUSE]
    assert harness.follower.state is FollowerState.OUTSIDE
    harness.step()
    assert harness.since() == WHOLE_STEP


def test_a_short_last_batch_is_outside():
    harness = Harness().ready()
    harness.step()
    harness.since()
    harness.step(keys=("short",))
    assert harness.since() == [PAUSE]
    harness.step()
    assert harness.since() == WHOLE_STEP
    assert (harness.follower.played, harness.follower.outside) == (2, 1)


def test_more_micro_batches_than_scheduled_are_outside_from_the_first_extra_one():
    harness = Harness().ready()
    harness.follower.forward("a", trains=True)
    harness.follower.edge("x", "backward_pre")
    assert harness.since() == [2, 3]
    harness.follower.forward("a", trains=True)
    assert harness.since() == [PAUSE]
    harness.follower.edge("x", "backward_pre")
    harness.follower.edge("", "optimizer_pre")
    harness.follower.end()
    assert harness.since() == []
    harness.step()
    assert harness.since() == WHOLE_STEP


def test_scheduled_micro_batches_are_one_step():
    harness = Harness().ready(keys=("a", "b"))
    harness.step(keys=("a", "b"))
    assert harness.since() == WHOLE_STEP
    harness.step(keys=("a", "c"))
    assert harness.since() == [2, PAUSE]


def test_a_step_that_passes_its_anchors_in_another_order_is_outside():
    harness = Harness().ready()
    harness.step(edges=(("", "optimizer_pre"), ("x", "backward_pre")))
    assert harness.since() == [2, PAUSE]
    assert harness.follower.played == 0


def test_where_the_step_asks_for_nothing_at_its_start_it_is_entered_after_a_pause():
    rows = [ROWS[0], ROWS[1], Segment(4, 6, A, 4, Anchor("", "optimizer_pre"))]
    harness = Harness(rows).ready()
    harness.step()
    assert harness.since() == [1, 2, 3]
    harness.step()
    assert harness.since() == [2, 3]
    harness.follower.forward("a", trains=False)
    harness.step()
    assert harness.since() == [PAUSE, 1, 2, 3]


def test_a_step_that_is_not_cyclic_ends_at_the_baseline():
    harness = Harness(cyclic=False).ready()
    harness.step()
    assert harness.since() == [1, 2, 3, PAUSE]


def test_after_standing_still_a_known_step_is_entered_again():
    harness = Harness([ROWS[0], ROWS[1], Segment(4, 6, A, 4, Anchor("", "optimizer_pre"))]).ready()
    harness.step()
    harness.since()
    harness.follower.rest()
    assert harness.follower.state is FollowerState.OUTSIDE
    harness.step()
    assert harness.since() == [1, 2, 3]


def test_evaluations_before_the_first_step_are_not_observed():
    harness = Harness()
    harness.follower.forward("eval", trains=False)
    harness.ready()
    harness.step()
    assert harness.since() == WHOLE_STEP


def test_an_end_without_a_step_means_nothing():
    harness = Harness().ready()
    harness.follower.end()
    assert harness.since() == []
    assert harness.follower.state is FollowerState.BETWEEN


@pytest.mark.parametrize("events", [3, 50])
def test_the_clocks_are_at_the_baseline_whenever_the_loop_is_outside(events):
    """A random walk of loop events: after each, the last number written fits the state."""
    import random

    for seed in range(20):
        rng = random.Random(seed)
        harness = Harness().ready()
        for _ in range(events):
            act = rng.choice(["train", "short", "eval", "edge", "update", "end"])
            follower = harness.follower
            if act in ("train", "short"):
                follower.forward("a" if act == "train" else "short", trains=True)
            elif act == "eval":
                follower.forward("a", trains=False)
            elif act == "end":
                follower.end()
            else:
                follower.edge(*(("x", "backward_pre") if act == "edge" else ("", "optimizer_pre")))
            if follower.state is FollowerState.OUTSIDE:
                assert not harness.written or harness.written[-1] == PAUSE
            if follower.state is FollowerState.INSIDE:
                assert harness.written[-1] in WHOLE_STEP
