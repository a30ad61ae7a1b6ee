"""Kernels of operators' loops, told from a profile of each called and as its graph."""

from types import SimpleNamespace

import pytest
import torch

from clockwright.tracer.measure import op_loops
from clockwright.tracer.measure.op_capture import CapturedOp
from clockwright.tracer.measure.op_loops import OpLoop, build_loops, identify
from tests.tracer.importers.kineto_files import kernel, launch, step, write


def loop(calls, *, graph=True):
    op = CapturedOp(torch.ops.aten.add.Tensor, (torch.ones(2), torch.ones(2)), {})
    return OpLoop(op, calls=calls, graph=SimpleNamespace() if graph else None)


@pytest.fixture
def identified(tmp_path, monkeypatch):
    """Identify loops from marked steps: number to (name, us) of each kernel; 2 us between them."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def call(loops, steps):
        events, key = [], 0
        for number, kernels in steps.items():
            base = 10_000 * (number + 1)
            events.append(step(number, f"{base}.000", "5000.000"))
            at = base + 100.0
            for place, (name, took_us) in enumerate(kernels):
                key += 1
                events.append(launch(key, f"{base + 1 + place}.000"))
                events.append(kernel(name, f"{at:.3f}", f"{took_us:.3f}", correlation=key))
                at += took_us + 2.0
        monkeypatch.setattr(op_loops, "profile_to", lambda path, body: write(path, *events))
        identify(loops, tmp_path / "loops.json")
        return loops

    return call


def test_a_loops_kernels_have_their_durations_in_the_graph(identified):
    (one,) = identified(
        [loop(calls=3)],
        {
            0: [("gemm", 50.0), ("sum", 9.0)] * 2,
            1: [("gemm", 40.0), ("sum", 5.0), ("gemm", 41.0), ("sum", 6.0),
                ("gemm", 42.0), ("sum", 7.0)],
        },
    )  # fmt: skip
    (gemm, gemm_ns), (total, sum_ns) = one.kernels
    assert (gemm[0], total[0]) == ("gemm", "sum")
    assert (gemm_ns, sum_ns) == (41_000.0, 6_000.0)
    assert one.gap_ns == pytest.approx(2_000.0)
    assert one.problem is None and one.graph is not None


def test_each_loop_gets_its_own(identified):
    first, second = identified(
        [loop(calls=1), loop(calls=2)],
        {0: [("a", 5.0)] * 2, 1: [("a", 4.0)], 2: [("b", 8.0)] * 2, 3: [("b", 7.0)] * 2},
    )
    assert [key[0] for key, _ in first.kernels] == ["a"]
    assert [key[0] for key, _ in second.kernels] == ["b"]
    assert second.kernels[0][1] == 7_000.0


def test_a_graph_of_other_kernels_leaves_the_called_ones(identified):
    (one,) = identified([loop(calls=2)], {0: [("a", 5.0), ("b", 3.0)] * 2, 1: [("ab", 7.0)] * 2})
    assert [(key[0], ns) for key, ns in one.kernels] == [("a", 5_000.0), ("b", 3_000.0)]


@pytest.mark.parametrize(
    "steps",
    [
        {2: [("a", 5.0)] * 2, 3: [("a", 4.0)]},
        {0: [("x", 5.0)] * 3, 1: [("x", 4.0)], 2: [("a", 5.0)] * 2, 3: [("a", 4.0)]},
    ],
    ids=["no kernel", "not alike"],
)
def test_an_operator_that_cannot_be_told_loses_its_graph(identified, steps):
    lost, kept = identified([loop(calls=1), loop(calls=1)], steps)
    assert lost.graph is None and "launches no kernel" in lost.problem
    assert kept.graph is not None and len(kept.kernels) == 1


def test_a_loop_without_a_graph_keeps_its_reason(identified):
    bare = loop(calls=0, graph=False)
    bare.problem = "reads back to the host"
    identified([loop(calls=1), bare], {0: [("a", 5.0)] * 2, 1: [("a", 4.0)]})
    assert bare.problem == "reads back to the host" and bare.kernels == []


def test_one_operator_that_fails_does_not_stop_the_others(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    failures = iter(
        [RuntimeError("not in a graph\nand more"), torch.OutOfMemoryError("full"), None]
    )

    def capture(made, l2_bytes, pool):
        made.graph = object()
        if (failure := next(failures)) is not None:
            raise failure

    monkeypatch.setattr(op_loops, "_capture", capture)
    found = build_loops([loop(calls=0).op for _ in range(3)], 50 << 20)
    assert [one.problem for one in found] == ["not in a graph", "out of memory", None]
    assert [one.graph is None for one in found] == [True, True, False]
