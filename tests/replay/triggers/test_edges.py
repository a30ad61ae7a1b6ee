"""Edges fire in the order in which kernels on either side of them are launched."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from clockwright.data.errors import InputError, MismatchError
from clockwright.data.schedule import Anchor
from clockwright.optimizer.anchors import find_anchors
from clockwright.replay.plan import plan_segments
from clockwright.replay.source import sequence_of_step
from clockwright.replay.triggers.eager import AnchoredTriggers
from clockwright.replay.triggers.edges import EdgeHooks
from clockwright.tracer.workloads.capture import recording
from tests.replay.builders import A, B, Segment

EDGES = ("forward_pre", "forward_post", "backward_pre", "backward_post")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Tiny(nn.Module):
    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.head = nn.Linear(8, 16)
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def _step(model, optimizer):
    tokens = torch.arange(12).reshape(2, 6) % 16
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _fired(model, wanted):
    optimizer = torch.optim.AdamW(model.parameters())
    fired: list[tuple[str, str]] = []
    hooks = EdgeHooks(model, optimizer, wanted, lambda module, edge: fired.append((module, edge)))
    _step(model, optimizer)
    hooks.remove()
    _step(model, optimizer)
    return fired


def test_a_module_is_entered_and_left_forward_and_then_backward():
    modules = ["blocks.0", "blocks.1"]
    fired = _fired(
        Tiny(),
        [(m, e) for m in modules for e in EDGES] + [("", "optimizer_pre"), ("", "optimizer_post")],
    )
    assert fired == [
        ("blocks.0", "forward_pre"),
        ("blocks.0", "forward_post"),
        ("blocks.1", "forward_pre"),
        ("blocks.1", "forward_post"),
        ("blocks.1", "backward_pre"),
        ("blocks.1", "backward_post"),
        ("blocks.0", "backward_pre"),
        ("blocks.0", "backward_post"),
        ("", "optimizer_pre"),
        ("", "optimizer_post"),
    ]


def test_a_block_is_left_backward_only_when_both_its_branches_are_done():
    fired = _fired(
        Tiny(),
        [("blocks.1", "backward_post"), ("blocks.1.norm", "backward_post"),
         ("blocks.1.mlp", "backward_post"), ("blocks.1.mlp", "backward_pre")],
    )  # fmt: skip
    assert [module for module, _ in fired] == [
        "blocks.1.mlp",
        "blocks.1.mlp",
        "blocks.1.norm",
        "blocks.1",
    ] or [module for module, _ in fired] == [
        "blocks.1.mlp",
        "blocks.1.mlp",
        "blocks.1",
        "blocks.1.norm",
    ]
    assert fired[0][1] == "backward_pre"


def test_a_module_whose_input_needs_no_gradient_is_left_all_the_same():
    assert _fired(Tiny(), [("embed", "backward_pre"), ("embed", "backward_post")]) == [
        ("embed", "backward_pre"),
        ("embed", "backward_post"),
    ]


def test_a_forward_recomputed_in_the_backward_pass_is_no_forward():
    wanted = [("blocks.0", "forward_pre"), ("blocks.0.mlp", "forward_post")]
    assert _fired(Tiny(recompute=True), wanted) == wanted


def test_hooks_do_not_change_the_gradients():
    torch.manual_seed(0)
    plain, hooked = Tiny(), Tiny()
    hooked.load_state_dict(plain.state_dict())
    names = [name for name, _ in hooked.named_modules() if name and name != "blocks"]
    hooks = EdgeHooks(hooked, None, [(n, e) for n in names for e in EDGES], lambda *_: None)
    for model in (plain, hooked):
        _step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    hooks.remove()
    for one, other in zip(plain.parameters(), hooked.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_unknown_module_is_named():
    with pytest.raises(MismatchError, match=r"blocks\.7"):
        EdgeHooks(Tiny(), None, [("blocks.7", "forward_pre")], lambda *_: None)


def _trigger_kernels(model) -> list[tuple[int, int]]:
    """(kernel at which each edge fired, kernel the optimizer's anchor stands for)."""
    optimizer = torch.optim.AdamW(model.parameters())
    _step(model, optimizer)
    with recording(model, on_cuda=False) as recorded:
        _step(model, optimizer)
    step = recorded()
    import pandas as pd

    timeline = pd.DataFrame(
        {"module": [item.module for item in step.items], "phase": [i.phase for i in step.items]}
    )
    anchors = find_anchors(timeline)
    wanted = {
        (anchor.module, anchor.edge, anchor.occurrence): kernel
        for kernel, anchor in enumerate(anchors)
        if anchor is not None and anchor.edge != "step_start"
    }
    seen: dict[tuple[str, str], int] = {}
    at: list[tuple[int, int]] = []
    with recording(model, on_cuda=False) as again:

        def on_edge(module: str, edge: str) -> None:
            occurrence = seen.get((module, edge), 0)
            seen[module, edge] = occurrence + 1
            kernel = wanted.get((module, edge, occurrence))
            if kernel is not None:
                at.append((len(again().items), kernel))

        hooks = EdgeHooks(model, optimizer, {key[:2] for key in wanted}, on_edge)
        _step(model, optimizer)
        hooks.remove()
    assert sequence_of_step(again()).fingerprint == sequence_of_step(step).fingerprint
    assert len(at) == len(wanted)
    return at


def test_hooks_fire_just_before_the_kernel_that_the_optimizers_anchor_stands_for():
    at = _trigger_kernels(Tiny())
    wrong = [(fired, kernel) for fired, kernel in at if fired != kernel]
    assert len(at) > 20
    assert wrong == []


def _rows(*anchors: tuple[str, str, int] | None) -> list[Segment]:
    pairs = [A, B] * len(anchors)
    return [
        Segment(2 * n, 2 * n + 2, pairs[n], 2 * n, None if key is None else Anchor(*key))
        for n, key in enumerate(anchors)
    ]


def test_triggers_are_taken_at_the_occurrence_they_name():
    rows = _rows(("", "step_start", 0), ("x", "forward_pre", 1), ("x", "forward_pre", 3))
    triggers = AnchoredTriggers(plan_segments([*rows[:2], rows[2]], 6))
    assert triggers.begin() is None  # the step ends at the pair it begins with
    taken = [triggers.at("x", "forward_pre") for _ in range(5)]
    assert [None if t is None else t.kernel for t in taken] == [None, 2, None, 4, None]
    assert triggers.complete


def test_a_trigger_out_of_order_ends_the_step():
    rows = _rows(("", "step_start", 0), ("x", "forward_pre", 0), ("y", "forward_pre", 0))
    triggers = AnchoredTriggers(plan_segments(rows, 6))
    triggers.begin()
    assert triggers.at("y", "forward_pre") is None
    assert triggers.strayed
    assert triggers.at("x", "forward_pre") is None
    triggers.begin()
    assert not triggers.strayed


def test_a_trigger_without_an_anchor_cannot_be_fired_eagerly():
    with pytest.raises(InputError, match="kernel 2, where no module begins or ends"):
        AnchoredTriggers(plan_segments(_rows(("", "step_start", 0), None), 4))


def test_two_triggers_at_one_anchor_are_refused():
    rows = _rows(("", "step_start", 0), ("x", "forward_pre", 0), ("x", "forward_pre", 0))
    with pytest.raises(InputError, match="share the anchor"):
        AnchoredTriggers(plan_segments(rows, 6))
