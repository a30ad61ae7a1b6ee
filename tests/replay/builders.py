"""Small schedules and sequences for the replay tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clockwright.data.schedule import Anchor, Cost, Predicted, Proof, Schedule, Segment
from clockwright.data.sequence import KernelSequence, pack
from clockwright.data.units import GOVERNOR, ClockPair

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
