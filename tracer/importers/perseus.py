"""Zeus/Perseus stage profiles: time and energy of each pipeline stage at each core clock.

Columns ``stage``, ``instruction`` (forward or backward), ``frequency`` (MHz), ``time`` (s) and
``energy`` (J), as Perseus's profiler writes them (https://ml.energy/zeus, SOSP'24). The trace is
one micro-batch through the pipeline: the forward instructions of the stages in order, then the
backward ones in the opposite order. Each stage runs on a GPU of its own; bubbles, communication
and the energy of a waiting stage are not in such a table and not in the trace. The memory clock
is not varied.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ...data.errors import FormatError, InputError
from ...data.tables import PAIRS, PROFILE, SIGNATURES, TIMELINE
from ...data.trace import Baseline, Trace
from ...data.units import ClockPair, parse_pair

__all__ = ["read_perseus"]

_NEEDED = ("stage", "instruction", "frequency", "time", "energy")
_NOTE = (
    "one micro-batch through all stages in turn; each stage is a GPU of its own, and pipeline "
    "bubbles and communication are not in the table"
)


def read_perseus(
    path: Path, *, baseline: str = "auto", drop_incomplete_pairs: bool = False
) -> Trace:
    """Read a stage profile as a trace of one micro-batch.

    Args:
        path: the CSV file.
        baseline: ``auto`` (the highest frequency) or ``MHZ/fixed``.
        drop_incomplete_pairs: leave out a frequency that some stage lacks, rather than refuse.

    Raises:
        InputError: a column or a stage's row is missing, or the baseline is not in the table.
        FormatError: a cell is no number; the message names line and column.
    """
    table = _load(Path(path))
    cells, dropped = _complete(_cells(table, path), path, drop_incomplete_pairs)
    kernels = _sequence(cells)
    frequencies = sorted(cells["frequency"].unique().tolist(), reverse=True)
    baseline_mhz = _baseline_mhz(baseline, frequencies, path)
    row = {kernel: number for number, kernel in enumerate(kernels)}
    place = {mhz: number for number, mhz in enumerate(frequencies)}
    by = cells.groupby(["kernel", "frequency"], sort=False)
    means = by[["duration_ns", "energy_mj"]].mean().reset_index()
    spread = by[["duration_ns", "energy_mj"]].std().reset_index(drop=True)
    n = by.size().to_numpy()
    deviation = spread.to_numpy(dtype=float) / np.sqrt(n)[:, None]
    profile = pd.DataFrame(
        {
            "signature": [row[kernel] for kernel in means["kernel"]],
            "pair": [place[mhz] for mhz in means["frequency"]],
            "duration_ns": means["duration_ns"],
            "duration_sd_ns": pd.array(deviation[:, 0].tolist(), dtype="Float64"),
            "energy_mj": means["energy_mj"],
            "energy_sd_mj": pd.array(deviation[:, 1].tolist(), dtype="Float64"),
            "n": pd.array(n, dtype="Int32"),
            "provenance": "imported",
        }
    )
    at = profile[profile["pair"] == place[baseline_mhz]].sort_values("signature")
    duration = np.rint(at["duration_ns"].to_numpy()).astype(np.int64)
    return Trace(
        gpu={"name": "unknown", "simulated": False},
        workload={"name": Path(path).name},
        provenance="imported",
        timeline=TIMELINE.frame(
            {
                "index": np.arange(len(kernels)),
                "stream": 0,
                "start_ns": np.concatenate([[0], np.cumsum(duration)[:-1]]),
                "duration_ns": duration,
                "signature": np.arange(len(kernels)),
                "launches": 1,
                "op": [kernel.partition("_")[2] for kernel in kernels],
                "module": [kernel.partition("_")[0] for kernel in kernels],
                "phase": [_phase(kernel) for kernel in kernels],
            }
        ),
        signatures=SIGNATURES.frame({"signature": np.arange(len(kernels)), "name": kernels}),
        pairs=PAIRS.frame(
            {
                "pair": np.arange(len(frequencies)),
                "core_mhz": frequencies,
                "provenance": "imported",
            }
        ),
        profile=PROFILE.frame(profile),
        baseline=Baseline(
            ClockPair(baseline_mhz, None),
            float(at["duration_ns"].sum()),
            float(at["energy_mj"].sum()),
        ),
        dropped=dropped,
        notes=(_NOTE,),
    )


def _load(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not a CSV table: {error}") from error
    table.columns = pd.Index([str(name).strip().lower() for name in table.columns])
    missing = [name for name in _NEEDED if name not in table.columns]
    if missing:
        raise FormatError(
            f"{path}: column {', '.join(missing)} is missing; a stage profile has "
            f"{', '.join(_NEEDED)} and this one has {', '.join(table.columns)}"
        )
    if table.empty:
        raise FormatError(f"{path}: the table has no rows")
    return table


def _column(table: pd.DataFrame, name: str, path: Path) -> pd.Series[float]:
    values = pd.to_numeric(table[name], errors="coerce").astype(float)
    bad = ~np.isfinite(values.to_numpy()) | (values.to_numpy() < 0)
    if name in {"stage", "frequency"}:
        bad |= values.to_numpy() != np.round(values.to_numpy())
    if name in {"frequency", "time"}:
        bad |= values.to_numpy() <= 0
    if bad.any():
        row = int(bad.argmax())
        what = "a whole number" if name in {"stage", "frequency"} else "a positive number"
        raise FormatError(
            f"{path}: line {row + 2}, column {name}: expected {what}, got {table[name].iloc[row]!r}"
        )
    return values


def _cells(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    stage = _column(table, "stage", path).astype(int)
    instruction = table["instruction"].str.strip()
    if (instruction == "").any():
        row = int((instruction == "").to_numpy().argmax())
        raise FormatError(f"{path}: line {row + 2}, column instruction: the name is empty")
    return pd.DataFrame(
        {
            "stage": stage,
            "instruction": instruction,
            "kernel": "stage" + stage.astype(str) + "_" + instruction,
            "frequency": _column(table, "frequency", path).astype(int),
            "duration_ns": _column(table, "time", path) * 1e9,
            "energy_mj": _column(table, "energy", path) * 1e3,
        }
    )


def _complete(cells: pd.DataFrame, path: Path, drop: bool) -> tuple[pd.DataFrame, dict[str, int]]:
    everyone = list(dict.fromkeys(cells["kernel"]))
    have = cells.groupby("frequency")["kernel"].nunique()
    short = have[have < len(everyone)]
    if short.empty:
        return cells, {}
    if not drop:
        mhz = int(short.index[0])
        there = set(cells.loc[cells["frequency"] == mhz, "kernel"])
        name = next(kernel for kernel in everyone if kernel not in there)
        raise FormatError(
            f"{path}: {name} has no row at {mhz} MHz ({len(short)} of {len(have)} frequencies "
            "are incomplete); measure it, or drop such pairs with --drop-incomplete-pairs"
        )
    whole = cells[~cells["frequency"].isin(short.index)]
    if whole.empty:
        raise FormatError(f"{path}: no frequency has a row for every stage and instruction")
    return whole, {"row at a pair where some kernel is missing": len(cells) - len(whole)}


def _phase(kernel: str) -> str:
    name = kernel.partition("_")[2].lower()
    return name if name in {"forward", "backward"} else "other"


def _sequence(cells: pd.DataFrame) -> list[str]:
    """Forward through the stages, then everything else, then backward from the last stage."""
    rank = {"forward": 0, "other": 1, "backward": 2}
    distinct = cells.drop_duplicates("kernel")
    keyed = []
    for order, row in enumerate(distinct.itertuples(index=False)):
        kernel, stage = str(row.kernel), int(str(row.stage))
        phase = _phase(kernel)
        keyed.append((rank[phase], -stage if phase == "backward" else stage, order, kernel))
    return [kernel for *_, kernel in sorted(keyed)]


def _baseline_mhz(asked: str, frequencies: list[int], path: Path) -> int:
    if asked.strip().lower() == "auto":
        return frequencies[0]
    pair = parse_pair(asked)
    if pair.core_mhz is None or pair.core_mhz not in frequencies or pair.mem_mhz is not None:
        listed = ", ".join(f"{mhz}/fixed" for mhz in frequencies[:6])
        raise InputError(
            f"{path}: baseline {pair} is not in the table; it has {len(frequencies)} frequencies, "
            f"such as {listed}"
        )
    return pair.core_mhz
