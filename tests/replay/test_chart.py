"""The chart shows prediction beside measurement and says what is simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clockwright.charts.replay_chart import draw_replay
from clockwright.data.errors import InputError
from clockwright.data.report import Block, Comparison, Estimate, Prediction, Report


def _report() -> Report:
    arms = ("baseline", "schedule", "best single pair")
    return Report(
        gpu={"name": "GPU X (simulated)"},
        workload={"name": "gpt"},
        schedule={"fingerprint": "sha256:" + "1" * 64, "kernels": 9, "segments": 3},
        simulated=True,
        mode="set",
        budget={"max_slowdown": 0.006},
        confidence=0.95,
        settings={},
        blocks=tuple(
            Block(r, p, arm, 1, r, 1e6 * (1 + 0.004 * p), 10.0 - p) for r in range(6)
            for p, arm in enumerate(arms)
        ),
        comparisons=(
            Comparison("schedule", Estimate(0.004, 0.003, 0.005), Estimate(0.1), "slower"),
            Comparison("best single pair", Estimate(0.008), None, "unresolved"),
        ),
        verdict="within",
        prediction=Prediction(0.005, 0.12, Estimate(-0.001), Estimate(-0.02), True, None),
        stopped="decided",
    )  # fmt: skip


def _text(report: Report, tmp_path) -> str:
    path = tmp_path / "c.svg"
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        draw_replay(report, path)
    return path.read_text()


def test_a_chart_names_arms_promise_budget_and_that_it_is_simulated(tmp_path):
    text = _text(_report(), tmp_path)
    for word in (
        "simulated, 6 rounds", "within the budget of 0.60%", "predicted", "replayed, simulated",
        "best single pair", "slowdown (%)", "energy saving (%)", "not measured",
    ):  # fmt: skip
        assert word in text
    assert ">measured<" not in text


def test_an_undecided_or_dry_replay_says_so(tmp_path):
    text = _text(replace(_report(), verdict="ambiguous", mode="dry", prediction=None), tmp_path)
    assert "undecided on the budget" in text
    assert "dry: no clock set" in text
    assert "predicted" not in text


def test_another_ending_is_refused_and_nothing_left(tmp_path):
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        draw_replay(_report(), tmp_path / "c.gif")
    assert list(tmp_path.iterdir()) == []
