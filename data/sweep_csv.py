"""The sweep CSV, in and out: one row a kernel and clock pair, from any tool.

Columns, matched without regard to case: ``kernel``, ``core_mhz``, ``mem_mhz``, ``time_ms`` and
``energy_mj`` (or ``power_w``, from which energy follows), all of one launch. Optional:
``is_default`` marks the reference pair, ``index`` the position in the sequence, ``count`` the
back-to-back launches there, ``time_sd_ms`` and ``energy_sd_mj`` the standard deviation of the
mean, ``provenance``. ``auto`` clocks are the driver's governor, ``fixed`` an unvaried clock.
Without ``index`` the first appearance of a kernel gives its place, one launch each. A kernel that
stands at several indexes is a signature of its own at each, since its cells may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ._files import replace_file
from .errors import FormatError, InputError
from .tables import PAIRS, PROFILE, PROVENANCES, SIGNATURES, TIMELINE
from .trace import Baseline, Trace
from .units import GOVERNOR, ClockPair, pair_from_columns, parse_pair

__all__ = ["read_sweep", "write_sweep"]

_NEEDED = ("kernel", "core_mhz", "mem_mhz", "time_ms")
_TRUE = frozenset({"1", "true", "yes"})


def read_sweep(path: Path, *, baseline: str = "auto", drop_incomplete_pairs: bool = False) -> Trace:
    """Read a sweep CSV as a trace with provenance ``imported`` (or what its column says).

    Args:
        path: the file.
        baseline: ``auto`` (the governor's rows; else the ``is_default`` pair; else the highest
            pair), ``governor``, or ``CORE/MEM``.
        drop_incomplete_pairs: leave out a pair at which some kernel is missing, rather than refuse.

    Raises:
        InputError: a missing column, a bad cell, a duplicate row, a kernel missing at a pair, a
            baseline that is not in the table; the message names line and column.
    """
    table = _load(Path(path))
    cells = _cells(table, path)
    pairs = list(dict.fromkeys(cells["pair"]))
    cells, pairs, dropped = _complete(cells, pairs, path, drop_incomplete_pairs)
    pair = _baseline(baseline, cells, pairs, path)
    return _trace(cells, pairs, pair, dropped, path)


def _load(path: Path) -> pd.DataFrame:
    try:
        # Without header=None pandas renames a repeated column and shifts rows that are too long.
        raw = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; a sweep is one CSV file") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not a CSV table: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    table = raw.iloc[1:].fillna("").reset_index(drop=True)
    table.columns = pd.Index([str(name).strip().lower() for name in raw.iloc[0]])
    twice = table.columns[table.columns.duplicated()]
    if len(twice):
        raise FormatError(f"{path}: column {twice[0]!r} appears twice")
    missing = [name for name in _NEEDED if name not in table.columns]
    if "energy_mj" not in table.columns and "power_w" not in table.columns:
        missing.append("energy_mj (or power_w)")
    if missing:
        raise FormatError(
            f"{path}: column {', '.join(missing)} is missing; a sweep has kernel, core_mhz, "
            f"mem_mhz, time_ms, energy_mj and this one has {', '.join(table.columns)}"
        )
    if table.empty:
        raise FormatError(f"{path}: the table has no rows")
    return table


def _numbers(
    table: pd.DataFrame, column: str, path: Path, *, above: float | None = None
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(values) | (values < 0)
    if above is not None:
        bad |= values <= above
    if bad.any():
        row = int(bad.argmax())
        least = "a positive number" if above is not None else "a number not below 0"
        raise FormatError(
            f"{path}: line {row + 2}, column {column}: expected {least}, "
            f"got {table[column].iloc[row]!r}"
        )
    return values


def _whole(table: pd.DataFrame, column: str, path: Path, least: int) -> list[int]:
    values = _numbers(table, column, path)
    bad = (values != np.round(values)) | (values < least) | (values > np.iinfo(np.int32).max)
    if bad.any():
        row = int(bad.argmax())
        raise FormatError(
            f"{path}: line {row + 2}, column {column}: expected a whole number from {least}, "
            f"got {table[column].iloc[row]!r}"
        )
    return [int(value) for value in values]


def _cells(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The table with numbers for texts, one row a kernel position and pair."""
    kernel = table["kernel"].str.strip()
    if (kernel == "").any():
        row = int((kernel == "").to_numpy().argmax())
        raise FormatError(f"{path}: line {row + 2}, column kernel: the name is empty")
    time_ms = _numbers(table, "time_ms", path, above=0.0)
    if "energy_mj" in table.columns:
        energy_mj = _numbers(table, "energy_mj", path, above=0.0)
    else:
        energy_mj = time_ms * _numbers(table, "power_w", path, above=0.0)  # ms x W = mJ
    cells = pd.DataFrame({"kernel": kernel, "time_ms": time_ms, "energy_mj": energy_mj})
    cells["pair"] = _pairs(table, path)
    indexed = "index" in table.columns
    cells["position"] = _whole(table, "index", path, 0) if indexed else pd.factorize(kernel)[0]
    cells["count"] = _whole(table, "count", path, 1) if "count" in table.columns else 1
    for column in ("time_sd_ms", "energy_sd_mj"):
        if column in table.columns:
            cells[column] = _numbers(table, column, path)
    default = table.get("is_default")
    cells["is_default"] = (
        False if default is None else default.str.strip().str.lower().isin(_TRUE).to_numpy()
    )
    cells["provenance"] = (
        table["provenance"].str.strip() if "provenance" in table.columns else "imported"
    )
    _check_positions(cells, path)
    return cells


def _pairs(table: pd.DataFrame, path: Path) -> list[ClockPair]:
    seen: dict[tuple[str, str], ClockPair] = {}
    pairs = []
    texts = zip(table["core_mhz"], table["mem_mhz"], strict=True)
    for row, key in enumerate(texts):
        if key not in seen:
            try:
                seen[key] = pair_from_columns(*key)
            except InputError as error:
                raise FormatError(f"{path}: line {row + 2}: {error}") from error
        pairs.append(seen[key])
    return pairs


def _check_positions(cells: pd.DataFrame, path: Path) -> None:
    for column in ("kernel", "count"):
        differs = cells.groupby("position")[column].transform("first") != cells[column]
        if differs.any():
            row = int(differs.to_numpy().argmax())
            raise FormatError(
                f"{path}: line {row + 2}: {column} {cells[column].iloc[row]!r} differs from an "
                f"earlier row of index {cells['position'].iloc[row]}"
            )
    twice = cells.duplicated(["position", "pair"])
    if twice.any():
        row = int(twice.to_numpy().argmax())
        raise FormatError(
            f"{path}: line {row + 2} repeats kernel {cells['kernel'].iloc[row]!r} at "
            f"{cells['pair'].iloc[row]}; keep one row a kernel and pair"
        )
    strange = ~cells["provenance"].isin(PROVENANCES)
    if strange.any():
        row = int(strange.to_numpy().argmax())
        raise FormatError(
            f"{path}: line {row + 2}, column provenance: expected one of "
            f"{', '.join(PROVENANCES)}, got {cells['provenance'].iloc[row]!r}"
        )


def _complete(
    cells: pd.DataFrame, pairs: list[ClockPair], path: Path, drop: bool
) -> tuple[pd.DataFrame, list[ClockPair], dict[str, int]]:
    everyone = set(cells["position"])
    if len(cells) == len(everyone) * len(pairs):
        return cells, pairs, {}
    lacking = {
        pair: everyone - set(group["position"]) for pair, group in cells.groupby("pair", sort=False)
    }
    holes = {pair: missing for pair, missing in lacking.items() if missing}
    if not drop:
        pair, missing = next(iter(holes.items()))
        name = cells.loc[cells["position"] == min(missing), "kernel"].iloc[0]
        raise FormatError(
            f"{path}: kernel {name!r} has no row at {pair!s} ({len(holes)} of {len(pairs)} pairs "
            "are incomplete); measure it, or drop such pairs with --drop-incomplete-pairs"
        )
    kept = [pair for pair in pairs if pair not in holes]
    if not kept:
        raise FormatError(f"{path}: no clock pair has a row for every kernel")
    whole = cells[cells["pair"].isin(kept)].reset_index(drop=True)
    return whole, kept, {"row at a pair where some kernel is missing": len(cells) - len(whole)}


def _height(pair: ClockPair) -> tuple[int, int]:
    return (pair.core_mhz or 0, pair.mem_mhz or 0)


def _baseline(asked: str, cells: pd.DataFrame, pairs: list[ClockPair], path: Path) -> ClockPair:
    if asked.strip().lower() != "auto":
        wanted = parse_pair(asked)
        if wanted not in pairs:
            listed = ", ".join(str(pair) for pair in sorted(pairs, key=_height)[-6:])
            raise InputError(
                f"{path}: baseline {wanted} is not in the table; it has {len(pairs)} pairs, "
                f"such as {listed}"
            )
        return wanted
    if GOVERNOR in pairs:
        return GOVERNOR
    marked = list(dict.fromkeys(cells.loc[cells["is_default"], "pair"]))
    if len(marked) > 1:
        raise InputError(
            f"{path}: is_default marks several pairs ({', '.join(map(str, marked[:4]))}); "
            "name one with --baseline CORE/MEM"
        )
    return marked[0] if marked else max(pairs, key=_height)


def _trace(
    cells: pd.DataFrame,
    pairs: list[ClockPair],
    baseline: ClockPair,
    dropped: Mapping[str, int],
    path: Path,
) -> Trace:
    sequence = cells.drop_duplicates("position").sort_values("position").reset_index(drop=True)
    number = {position: row for row, position in enumerate(sequence["position"])}
    signature = cells["position"].map(number).to_numpy()
    place = {pair: row for row, pair in enumerate(pairs)}
    profile = pd.DataFrame(
        {
            "signature": signature,
            "pair": [place[pair] for pair in cells["pair"]],
            "duration_ns": cells["time_ms"] * 1e6,
            "energy_mj": cells["energy_mj"],
            "provenance": cells["provenance"],
        }
    )
    if "time_sd_ms" in cells:
        profile["duration_sd_ns"] = cells["time_sd_ms"] * 1e6
    if "energy_sd_mj" in cells:
        profile["energy_sd_mj"] = cells["energy_sd_mj"]
    at_baseline = profile[profile["pair"] == place[baseline]].sort_values("signature")
    count = sequence["count"].to_numpy(dtype=np.int64)
    step_ns = at_baseline["duration_ns"].to_numpy() * count
    timeline = _timeline(sequence, step_ns, path)
    kinds = set(cells["provenance"])
    provenance = "simulated" if "simulated" in kinds else next(iter(cells["provenance"]))
    return Trace(
        gpu={"name": "unknown", "simulated": "simulated" in kinds},
        workload={"name": Path(path).name},
        provenance=provenance,
        timeline=TIMELINE.frame(timeline),
        signatures=SIGNATURES.frame(
            {"signature": np.arange(len(sequence)), "name": sequence["kernel"]}
        ),
        pairs=PAIRS.frame(
            {
                "pair": np.arange(len(pairs)),
                "core_mhz": pd.array([pair.core_mhz for pair in pairs], dtype="Int32"),
                "mem_mhz": pd.array([pair.mem_mhz for pair in pairs], dtype="Int32"),
                "provenance": provenance,
            }
        ),
        profile=PROFILE.frame(profile),
        baseline=Baseline(
            baseline,
            float(step_ns.sum()),
            float((at_baseline["energy_mj"].to_numpy() * count).sum()),
        ),
        dropped=dropped,
    )


def _timeline(sequence: pd.DataFrame, step_ns: np.ndarray, path: Path) -> pd.DataFrame:
    """The kernels back to back on one stream, ``step_ns`` the time of each row of ``sequence``."""
    if step_ns.sum() > np.iinfo(np.int64).max / 2:
        raise FormatError(f"{path}: the step's time does not fit in 64 bits of nanoseconds")
    duration = np.rint(step_ns).astype(np.int64)
    if not duration.all():
        name = sequence["kernel"].iloc[int((duration == 0).argmax())]
        raise FormatError(
            f"{path}: kernel {name!r} takes less than a nanosecond at the baseline pair; "
            "is time_ms in milliseconds?"
        )
    return pd.DataFrame(
        {
            "index": np.arange(len(sequence)),
            "stream": 0,
            "start_ns": np.concatenate([[0], np.cumsum(duration)[:-1]]),
            "duration_ns": duration,
            "signature": np.arange(len(sequence)),
            "launches": sequence["count"].to_numpy(dtype=np.int64),
            "phase": "other",
        }
    )


def _cell(clock: int | None, governor: bool) -> str:
    return str(clock) if clock is not None else "auto" if governor else "fixed"


def write_sweep(trace: Trace, path: Path) -> None:
    """Write a trace's profile as a sweep CSV, one row a kernel of the step and pair.

    Kernels keep their place (``index``) and launches (``count``); times are written with 17
    digits, so that reading them back gives the same numbers.

    Raises:
        InputError: the trace lacks the energy of some cell, or the place cannot be written.
    """
    time_ns, energy_mj = trace.grid("duration_ns"), trace.grid("energy_mj")
    holes = np.argwhere(np.isnan(time_ns) | np.isnan(energy_mj))
    if len(holes):
        name = trace.signatures["name"].iloc[int(holes[0][0])]
        raise InputError(
            f"the trace has no time or energy for kernel {name!r} at "
            f"{trace.clock_pairs()[int(holes[0][1])]}; a sweep CSV needs every cell"
        )
    # A sweep tells kernels by name, so one without a name gets its number.
    names = [
        name.strip() or f"signature {row}" for row, name in enumerate(trace.signatures["name"])
    ]
    timeline = trace.timeline
    scale = [
        timeline[c].to_numpy(dtype=float, na_value=1.0) for c in ("time_scale", "energy_scale")
    ]
    rows = timeline["signature"].to_numpy(dtype=np.int64)
    frames = []
    for number, pair in enumerate(trace.clock_pairs()):
        time_ms = time_ns[rows, number] * scale[0] / 1e6
        energy = energy_mj[rows, number] * scale[1]
        columns: dict[str, Any] = {
            "index": timeline["index"],
            "kernel": [names[row] for row in rows],
            "count": timeline["launches"],
            "core_mhz": _cell(pair.core_mhz, pair.is_governor),
            "mem_mhz": _cell(pair.mem_mhz, pair.is_governor),
            "time_ms": time_ms,
            "energy_mj": energy,
            "power_w": energy / time_ms,
            "is_default": int(pair == trace.baseline.pair),
            "provenance": "simulated" if trace.simulated else trace.provenance,
        }
        frames.append(pd.DataFrame(columns))
    with replace_file(Path(path)) as temporary:
        pd.concat(frames).to_csv(temporary, index=False, float_format="%.17g")
