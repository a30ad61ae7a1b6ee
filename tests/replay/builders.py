"""Small schedules and sequences for the replay tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clockwright.data.schedule import Anchor, Cost, Predicted, Proof, Schedule, Segment
from clockwright.data.sequence import KernelSequence, pack
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.work import KernelWork, StepItem, StepWork

START = Anchor("", "step_start")
A, B, C = ClockPair(1900, 9000), ClockPair(1200, 9000), ClockPair(1200, 5000)


def sequence(names: Sequence[str]) -> KernelSequence:
    texts = tuple(dict.fromkeys(f"0;1;{name}|?|?|?|?|aten::{name}|[[4]]" for name in names))
    index = {text: number for number, text in enumerate(texts)}
    return KernelSequence(
        texts, tuple(index[f"0;1;{name}|?|?|?|?|aten::{name}|[[4]]"] for name in names)
    )


def segments(*rows: tuple[int, int, ClockPair] | tuple[int, int, ClockPair, int]) -> list[Segment]:
    return [
        Segment(
            row[0], row[1], row[2], row[3] if len(row) > 3 else row[0], Anchor("", "step_start")
        )
        for row in rows
    ]


def schedule(
    rows: Sequence[Segment],
    names: Sequence[str] | None = None,
    *,
    baseline_pair: ClockPair = GOVERNOR,
    budget: float = 0.01,
    predicted: Predicted | None = None,
    cyclic: bool = True,
    carry: bool = True,
    **fields: Any,
) -> Schedule:
    kernels = rows[-1].end
    ran = sequence(names if names is not None else [f"k{number}" for number in range(kernels)])
    return Schedule(
        **{
            "gpu": {"name": "test GPU", "simulated": True},
            "workload": {"name": "test"},
            "trace": {"fingerprint": ran.fingerprint, "kernels": kernels},
            "simulated": True,
            "provenance": "simulated",
            "budget": {"max_slowdown": budget, "confidence": None},
            "switch_model": {"semantic": "free", "source": "test"},
            "segments": tuple(rows),
            "baseline": Cost(1e6, 100.0),
            "baseline_pair": baseline_pair,
            "predicted": predicted or Predicted(1.005e6, 90.0, 0.005, 0.1),
            "proof": Proof(90.0, 0.0, "test", "optimal"),
            "cyclic": cyclic,
            "extra": {"sequence": pack(ran)} if carry else {},
        }
        | fields
    )


GEMM = KernelWork(
    "gemm", "aten::mm", "[[4096, 4096], [4096, 4096]]", "bfloat16",
    2 * 4096**3, 4 * 4096**2, 2 * 4096**2, "tensor_16", 4096**2,
)  # fmt: skip
ADD = KernelWork("add", "aten::add", "[[67108864]]", "bfloat16", 2**26, 2**28, 2**27, "none", 2**26)


def small_step(layers: int = 4) -> StepWork:
    """Five matrix products and five additions a layer, about 10 ms each layer at full clocks."""
    layer = [StepItem(0, "forward", "layer")] * 5 + [StepItem(1, "forward", "layer")] * 5
    return StepWork("small", (GEMM, ADD), tuple(layer * layers))


def phase_rows(
    products: ClockPair, additions: ClockPair, layers: int = 4, lead: int = 0
) -> list[Segment]:
    """One pair for each layer's products and one for its additions."""
    kernels = 10 * layers
    return [
        Segment(start, start + 5, pair, (start - lead) % kernels, START)
        for layer in range(layers)
        for start, pair in ((10 * layer, products), (10 * layer + 5, additions))
    ]
