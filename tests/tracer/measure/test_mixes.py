"""What is mixed with what: every operator alone, the large ones at other clocks too."""

from clockwright.tracer.measure.mixes import MixPlan, _interleaved, plan_mixes

REPLAY_NS = [7e5, 2e6, None, 1e5, 5e4]
WEIGHTS = [0.5, 0.3, 0.0, 0.2, 1e-5]


def plans(**options):
    return plan_mixes(REPLAY_NS, WEIGHTS, heavy=0, **options)


def test_every_operator_is_measured_alone_and_first():
    found = plans()
    alone = [plan for plan in found if plan.kind == "alone"]
    assert sorted(next(iter(plan.loops)) for plan in alone) == [0, 1, 3, 4]
    assert {plan.kind for plan in found[:5]} == {"alone", "wait"}


def test_minor_operators_are_measured_alone_only():
    kinds = {plan.kind for plan in plans() if 4 in plan.loops}
    assert kinds == {"alone"}


def test_large_ones_run_beside_a_hungrier_and_a_waiting_one():
    kinds = [plan.kind for plan in plans(step_like=0) if 1 in plan.loops]
    assert sorted(kinds) == ["alone", "heavy", "light"]


def test_an_operator_without_a_graph_is_in_no_mix():
    assert all(2 not in plan.loops for plan in plans())


def test_equal_seeds_plan_alike():
    assert plans(seed=3) == plans(seed=3)
    assert plans(seed=3) != plans(seed=4)


def test_a_sequence_is_spread_evenly():
    order = _interleaved(MixPlan("light", {7: 4}, waits=2))
    assert sorted(order) == [-1, -1, 7, 7, 7, 7]
    assert order not in ([7, 7, 7, 7, -1, -1], [-1, -1, 7, 7, 7, 7])
