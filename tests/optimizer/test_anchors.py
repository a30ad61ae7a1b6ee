"""Anchors are the hooks that fire between two kernels, counted as PyTorch would fire them."""

import pandas as pd

from clockwright.data.schedule import Anchor
from clockwright.optimizer.anchors import find_anchors


def anchors(*rows):
    return find_anchors(pd.DataFrame(rows, columns=["module", "phase"]))


def test_entering_a_module_anchors_at_its_forward():
    found = anchors(("wte", "forward"), ("h.0.ln", "forward"), ("h.0.ln", "forward"))
    assert found == [Anchor("", "step_start"), Anchor("h.0.ln", "forward_pre"), None]


def test_back_in_the_parent_anchors_at_the_childs_end():
    found = anchors(("h.0.attn", "forward"), ("h.0", "forward"))
    assert found[1] == Anchor("h.0.attn", "forward_post")


def test_a_module_called_twice_is_told_apart():
    found = anchors(("a", "forward"), ("b", "forward"), ("a", "forward"), ("b", "forward"))
    assert found[3] == Anchor("b", "forward_pre", 1)
    assert found[2] == Anchor("a", "forward_pre", 1)


def test_backward_and_optimizer_have_edges_of_their_own():
    found = anchors(
        ("head", "forward"), ("head", "backward"), (None, "optimizer"), (None, "optimizer"),
        ("head", "forward"),
    )  # fmt: skip
    assert found[1:] == [
        Anchor("head", "backward_pre"),
        Anchor("", "optimizer_pre"),
        None,
        Anchor("head", "forward_pre", 1),
    ]


def test_a_kernel_of_no_module_is_no_place_to_switch():
    found = anchors(("head", "forward"), (None, "forward"), (None, "backward"), ("h", "backward"))
    assert found[1:] == [None, None, Anchor("h", "backward_pre")]


def test_a_modules_end_is_not_claimed_after_foreign_kernels():
    found = anchors(("h.0.attn", "forward"), (None, "forward"), ("h.0", "forward"))
    assert found[2] is None
