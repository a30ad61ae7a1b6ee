"""One trace from measurements at several locked pairs, and from what a fit says of the others.

The baseline's measurement gives timeline and signatures. Every other pair's cells are taken over by
signature and order (`alignment`); a kernel for which another algorithm was chosen stays unknown at
that pair. Pairs never measured get cells of provenance ``fitted`` with the fit's own uncertainty;
their whole step is unknown, since nobody ran it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...data import tables
from ...data.trace import Baseline, Trace
from ...data.units import GOVERNOR, ClockPair
from ..measure.response import Prediction, ResponseModel
from .alignment import Alignment

__all__ = ["MeasuredPair", "merge", "usable_cells"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_LEAST_FITTED = 3


@dataclass(frozen=True)
class MeasuredPair:
    """One pair's measurement.

    Attributes:
        trace: its one-pair trace.
        alignment: how its signatures map to the baseline's.
        fitted_at: the pair whose clocks it ran at, for the fit; None keeps it out of the fit.
    """

    trace: Trace
    alignment: Alignment
    fitted_at: ClockPair | None


def usable_cells(found: MeasuredPair) -> tuple[Floats, Floats]:
    """(S,) time and (S,) energy by the baseline's signatures; NaN where no fit may use them."""
    rows = found.alignment.rows
    columns = []
    for name in ("duration_ns", "energy_mj"):
        values = found.trace.grid(name)[:, 0]
        taken = np.where(rows >= 0, values[np.maximum(rows, 0)], np.nan)
        columns.append(np.where(taken > 0, taken, np.nan))
    known = np.isfinite(columns[0]) & np.isfinite(columns[1])
    return np.where(known, columns[0], np.nan), np.where(known, columns[1], np.nan)


def merge(
    base: Trace,
    measured: Mapping[ClockPair, MeasuredPair],
    fitted: Sequence[ClockPair] = (),
    *,
    notes: Sequence[str] = (),
    partial: str | None = None,
) -> Trace:
    """Put the sweep together.

    Args:
        base: the measurement under the governor, its row so labelled.
        measured: every locked pair's.
        fitted: pairs to predict.
        notes: added to the measurements' own.
        partial: why the sweep is not whole, if it is not.
    """
    pairs = [base.pairs]
    profile = [_numbered(base.profile, 0)]
    for number, found in enumerate(measured.values(), start=1):
        pairs.append(found.trace.pairs.assign(pair=number))
        profile.append(_numbered(_renamed(found), number))
    left = [pair for pair in fitted if pair not in measured]
    prediction = _predict(measured, left, len(base.signatures))
    if prediction is not None:
        first = 1 + len(measured)
        pairs.append(_fitted_pairs(left, first))
        profile.append(_fitted_profile(*prediction, first))
    row = base.pairs.iloc[0]
    own_notes = [note for t in (base, *(m.trace for m in measured.values())) for note in t.notes]
    partials = [partial, *(t.partial for t in (base, *(m.trace for m in measured.values())))]
    return replace(
        base,
        pairs=tables.PAIRS.frame(pd.concat(pairs, ignore_index=True)),
        profile=tables.PROFILE.frame(pd.concat(profile, ignore_index=True)),
        baseline=Baseline(GOVERNOR, _number(row["step_time_ns"]), _number(row["step_energy_mj"])),
        notes=tuple(dict.fromkeys([*own_notes, *notes])),
        partial="; ".join(dict.fromkeys(text for text in partials if text)) or None,
    ).checked()


def _number(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload, arg-type]


def _numbered(profile: pd.DataFrame, number: int) -> pd.DataFrame:
    return profile.assign(pair=pd.array([number] * len(profile), dtype="Int32"))


def _renamed(found: MeasuredPair) -> pd.DataFrame:
    """The measurement's profile by the baseline's signatures, without those that have none."""
    ours = np.flatnonzero(found.alignment.rows >= 0)
    named = pd.DataFrame({"ours": ours, "signature": found.alignment.rows[ours]})
    profile = found.trace.profile.astype({"signature": "int64"})
    joined = named.merge(profile, on="signature").drop(columns="signature")
    return joined.rename(columns={"ours": "signature"})


def _predict(
    measured: Mapping[ClockPair, MeasuredPair], left: Sequence[ClockPair], count: int
) -> tuple[Prediction, Flags] | None:
    """Prediction (S, L) at the pairs left, and which signatures it holds for; None for none.

    Signatures that lack a cell somewhere are fitted to the pairs they have.
    """
    used = {found.fitted_at: found for found in measured.values() if found.fitted_at is not None}
    if not left or len(used) < _LEAST_FITTED:
        return None
    model = ResponseModel([*left, *used])
    cells = [usable_cells(found) for found in used.values()]
    time_ns = np.stack([cell[0] for cell in cells], axis=1)
    energy_mj = np.stack([cell[1] for cell in cells], axis=1)
    known = np.isfinite(time_ns)
    shape = (count, len(left))
    out = tuple(np.full(shape, np.nan) for _ in range(4))
    patterns, which = np.unique(known, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if pattern.sum() < _LEAST_FITTED:
            continue
        rows = np.flatnonzero(which.ravel() == number)
        at = np.flatnonzero(pattern)
        found = model.predict(
            (len(left) + at).tolist(), time_ns[np.ix_(rows, at)], energy_mj[np.ix_(rows, at)]
        )
        parts = (found.time_ns, found.energy_mj, found.time_sd, found.energy_sd)
        for target, values in zip(out, parts, strict=True):
            target[rows] = values[:, : len(left)]
    fits = np.isfinite(out[0]).all(axis=1)
    return Prediction(out[0], out[1], out[2], out[3], np.zeros(len(left), dtype=bool)), fits


def _fitted_pairs(left: Sequence[ClockPair], first: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "pair": np.arange(first, first + len(left)),
            "core_mhz": pd.array([pair.core_mhz for pair in left], dtype="Int32"),
            "mem_mhz": pd.array([pair.mem_mhz for pair in left], dtype="Int32"),
            "provenance": "fitted",
        }
    )


def _fitted_profile(prediction: Prediction, fits: Flags, first: int) -> pd.DataFrame:
    rows = np.flatnonzero(fits)
    count = prediction.time_ns.shape[1]
    time_ns, energy_mj = prediction.time_ns[rows], prediction.energy_mj[rows]
    return pd.DataFrame(
        {
            "signature": np.repeat(rows, count),
            "pair": np.tile(np.arange(first, first + count), len(rows)),
            "duration_ns": time_ns.ravel(),
            "duration_sd_ns": (time_ns * prediction.time_sd[rows]).ravel(),
            "energy_mj": energy_mj.ravel(),
            "energy_sd_mj": (energy_mj * prediction.energy_sd[rows]).ravel(),
            "provenance": "fitted",
        }
    )
