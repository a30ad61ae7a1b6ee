"""Where in a model an eager step can be told to switch: the edges of modules.

A kernel is an anchor's kernel if a hook of PyTorch's fires between it and the kernel before: the
step starts, a module's forward or backward begins or ends, the optimizer's step begins or ends.
Which call of a module it is, is counted in the recording (``occurrence``).

Left out: calls that launch no kernel, and two calls of one module with no other module's kernel
between them, which the kernel sequence cannot tell from one; hooks inside a compiled region.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from ..data.schedule import Anchor

__all__ = ["find_anchors"]


def find_anchors(timeline: pd.DataFrame) -> list[Anchor | None]:
    """The anchor just before each kernel of a timeline, None where no hook fires there.

    A kernel of no known module (a loss outside the model) is never an anchor's kernel.
    """
    modules = [None if pd.isna(path) else str(path) for path in timeline["module"]]
    phases = timeline["phase"].astype(str).tolist()
    fired: Counter[tuple[str, str]] = Counter()
    anchors: list[Anchor | None] = []
    before: tuple[str, str] | None = None
    strayed = False
    for position, (module, phase) in enumerate(zip(modules, phases, strict=True)):
        if module is None and phase != "optimizer":
            anchors.append(Anchor("", "step_start") if position == 0 else None)
            strayed = True
            continue
        here = ("" if module is None or phase == "optimizer" else module, phase)
        edges = _edges(before, here)
        fired.update(edges)
        before = here
        if position == 0:
            anchors.append(Anchor("", "step_start"))
        elif edges and not (strayed and edges[-1][1].endswith("_post")):
            anchors.append(Anchor(*edges[-1], fired[edges[-1]] - 1))
        else:
            # After kernels of no known module, a module's end lies before them, not here.
            anchors.append(None)
        strayed = False
    return anchors


def _edges(before: tuple[str, str] | None, here: tuple[str, str]) -> Sequence[tuple[str, str]]:
    """(module, edge) of the hooks that fire between two kernels, the last nearest to the second."""
    if before == here:
        return []
    (old, old_phase), (new, phase) = before or ("", ""), here
    edges: list[tuple[str, str]] = []
    if old_phase == "optimizer":
        edges.append(("", "optimizer_post"))
    if phase == "optimizer":
        edges.append(("", "optimizer_pre"))
    model = ("forward", "backward")
    left = _lineage(old) if old_phase in model else []
    entered = _lineage(new) if phase in model else []
    if old_phase == phase:
        common = len([1 for a, b in zip(left, entered, strict=False) if a == b])
        left, entered = left[common:], entered[common:]
    posts = [(module, f"{old_phase}_post") for module in reversed(left)]
    return [*posts, *edges, *((module, f"{phase}_pre") for module in entered)]


def _lineage(module: str) -> list[str]:
    """The module and those it lies in, outermost first: '' (the model), ``h``, ``h.0``."""
    parts = module.split(".") if module else []
    return ["", *(".".join(parts[: depth + 1]) for depth in range(len(parts)))]
