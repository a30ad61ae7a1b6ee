"""From what the user says about switches, or what was measured, to a switch model.

``free``; a duration (``1ms``); a core and a memory part (``2us,5us``); ``measured``, that is the
trace's own table; or a file with one (CSV, Parquet, JSON). Columns are those of the ``switches``
table; a time may also stand in ``_us`` or ``_ms``, ``est_latency`` for ``latency`` and ``gpu`` for
``core``, as other tools write them.

A transition the table does not hold takes the value of the measured one nearest to it among those
that change the same clocks (in logarithms of the four clocks); one that changes both, where no such
transition was measured, takes the core's plus the memory's. Where a stall's energy is unknown, the
idle power is drawn through it. Medians are used: scatter of single switches is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data.errors import FormatError, InputError
from ..data.tables import SWITCHES
from ..data.units import ClockPair, parse_duration_ns
from .scatter import LatencySpread, spread_of_table
from .switch_model import ConstantStall, Free, Lag, MatrixStall, SwitchModel, TwoPartStall

__all__ = ["SwitchChoice", "choose_switches", "read_switch_table"]

Array = NDArray[np.float64]
_CLOCKS = ("from_core_mhz", "from_mem_mhz", "to_core_mhz", "to_mem_mhz")
_NS_PER = {"ns": 1.0, "us": 1e3, "ms": 1e6}


@dataclass(frozen=True)
class SwitchChoice:
    """A switch model with where it comes from.

    Attributes:
        model: what the solver charges.
        described: for the schedule's ``switch_model``: semantic, source, costs.
        notes: what a reader should know.
        spread: how latencies scatter under lag; None where not known.
    """

    model: SwitchModel
    described: dict[str, Any]
    notes: tuple[str, ...] = ()
    spread: LatencySpread | None = None


@dataclass(frozen=True)
class _Device:
    """What the trace knows about its device's switches."""

    pairs: tuple[ClockPair, ...]
    idle_power_w: Array | None
    table: pd.DataFrame | None
    semantic: str | None
    semantic_of_device: str | None


def choose_switches(
    source: str,
    pairs: Sequence[ClockPair],
    *,
    semantic: str | None = None,
    min_dwell_ns: int | None = None,
    table: pd.DataFrame | None = None,
    device_semantic: str | None = None,
    device_min_dwell_ns: int | None = None,
    idle_power_w: Array | None = None,
) -> SwitchChoice:
    """The switch model that ``source`` names, over ``pairs``.

    Args:
        source: ``auto`` (measured where the trace has a table, else free), ``measured``, ``free``,
            ``1ms``, ``2us,5us`` or a file.
        pairs: the problem's pairs.
        semantic: ``stall`` or ``lag``; None takes the device's own, else stall.
        min_dwell_ns: least time between two requests under lag; None takes the device's own.
        table: the trace's switches.
        device_semantic: the trace's ``switch_semantic``.
        device_min_dwell_ns: the trace's ``switch_min_dwell_ns``.
        idle_power_w: (F,) W, for the energy of a stall.

    Raises:
        InputError: the words make no sense, there is no table, or it lacks what is needed.
    """
    if semantic == "stall" and min_dwell_ns is not None:
        raise InputError("a least dwell is of late switches: it goes with --semantic lag")
    device = _Device(
        tuple(pairs), idle_power_w, table, semantic or device_semantic, device_semantic
    )
    if device.semantic not in (None, "stall", "lag"):
        raise InputError(f"switch semantic must be stall or lag, got {device.semantic!r}")
    word = source.strip().lower()
    if word == "auto":
        if table is None:
            note = (
                "switches are taken as free, since the trace has no switch table: the saving is "
                "an upper limit; for a schedule to replay say what a switch costs, such as "
                "--switches 1ms or a table (dear switches may need a larger --max-slowdown)"
            )
            return SwitchChoice(Free(), {"semantic": "free", "source": "assumed"}, (note,))
        word = "measured"
    if word == "free":
        return SwitchChoice(Free(), {"semantic": "free", "source": "free"})
    dwell = min_dwell_ns if min_dwell_ns is not None else device_min_dwell_ns or 0
    if word == "measured":
        if table is None:
            raise InputError(
                "the trace has no switch table; say --switches free, 1ms, 2us,5us (core, memory) "
                "or name a file with one"
            )
        return _from_table(table, "measured", device, dwell)
    if Path(source).suffix.lower() in {".csv", ".parquet", ".json"} or Path(source).exists():
        return _from_table(read_switch_table(Path(source)), Path(source).name, device, dwell)
    return _from_durations(source, device, dwell)


def _from_durations(source: str, device: _Device, dwell: int) -> SwitchChoice:
    try:
        parts = [parse_duration_ns(part) for part in source.split(",")]
    except InputError as error:
        raise InputError(
            f"switches must be measured, free, a duration such as 1ms, a core and a memory part "
            f"such as 2us,5us, or a .csv, .parquet or .json file; got {source!r}: {error}"
        ) from error
    if len(parts) > 2:
        raise InputError(f"expected one duration, or a core and a memory part, got {source!r}")
    core, mem = float(parts[0]), float(parts[-1])
    if core == mem == 0:
        return SwitchChoice(Free(), {"semantic": "free", "source": source})
    both = len(parts) == 2
    costs = {"core_ns": core, "mem_ns": mem} if both else {"time_ns": core}
    if device.semantic == "lag":
        described = {"semantic": "lag", "source": source, "min_dwell_ns": dwell, **costs}
        latency: float | Array = _two_part(device.pairs, core, mem) if both else core
        return SwitchChoice(Lag(latency, float(dwell)), described)
    power_w, notes = _stall_power_w(device)
    described = {"semantic": "stall", "source": source, "stall_power_w": power_w, **costs}
    if not both:
        return SwitchChoice(ConstantStall(core, core * power_w * 1e-6), described, notes)
    model = TwoPartStall(core, mem, core * power_w * 1e-6, mem * power_w * 1e-6)
    return SwitchChoice(model, described, notes)


def _stall_power_w(device: _Device) -> tuple[float, tuple[str, ...]]:
    """W drawn while a switch stalls: the mean idle power of the pairs, 0 where it is unknown."""
    if device.idle_power_w is None:
        return 0.0, ("the energy of a switch is not counted: idle power is unknown",)
    return float(np.mean(device.idle_power_w)), ()


def _two_part(pairs: Sequence[ClockPair], core: float, mem: float) -> Array:
    cores = np.array([pair.core_mhz or 0 for pair in pairs])
    mems = np.array([pair.mem_mhz or 0 for pair in pairs])
    latency: Array = core * (cores[:, None] != cores) + mem * (mems[:, None] != mems)
    return latency


def read_switch_table(path: Path) -> pd.DataFrame:
    """Read a switch table as a checked frame of `clockwright.data.tables.SWITCHES`.

    Raises:
        InputError: no such file, or a kind of file we do not read.
        FormatError: it is not a switch table.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": pd.read_csv,
        ".parquet": pd.read_parquet,
        ".json": pd.read_json,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: a switch table is a .csv, .parquet or .json file")
    try:
        raw = reader(path)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not a readable table: {str(error)[:120]}") from error
    try:
        return SWITCHES.frame(_renamed(raw))
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _renamed(raw: pd.DataFrame) -> pd.DataFrame:
    """Other tools' names and units for ours; columns we have no place for are left out."""
    columns: dict[str, Any] = {}
    for label in raw.columns:
        name = str(label).strip().lower().replace("_gpu_mhz", "_core_mhz")
        name = name.replace("est_latency", "latency")
        values = raw[label]
        for unit, factor in _NS_PER.items():
            if f"_{unit}" in name and name.replace(f"_{unit}", "_ns", 1) in SWITCHES.names:
                name, values = name.replace(f"_{unit}", "_ns", 1), values * factor
                break
        if name in SWITCHES.names:
            columns[name] = values
    missing = [
        name for name in ("from_core_mhz", "to_core_mhz", "latency_ns_p50") if name not in columns
    ]
    if missing:
        raise FormatError(
            f"column {', '.join(missing)} is missing; a switch table has from_core_mhz, "
            "to_core_mhz, latency_ns_p50 (and from_mem_mhz, to_mem_mhz, stall_ns, energy_mj)"
        )
    columns.setdefault("provenance", ["imported"] * len(raw))
    return pd.DataFrame(columns)


def _from_table(table: pd.DataFrame, source: str, device: _Device, dwell: int) -> SwitchChoice:
    """Fill an (F, F) matrix from a table, and name the simplest model that says the same."""
    lag = device.semantic == "lag"
    table = table.dropna(subset=["from_core_mhz", "to_core_mhz"])
    if table.empty:
        raise InputError(f"switch table {source} holds no transition between locked core clocks")
    latency = table["latency_ns_p50"].to_numpy(dtype=float)
    stall = table["stall_ns"].to_numpy(dtype=float, na_value=np.nan)
    # A device that lags stalls for no time: made to stall, it does so until the clock is there.
    lags = device.semantic_of_device == "lag"
    time = latency if lag or lags else np.where(np.isnan(stall), latency, stall)
    energy = table["energy_mj"].to_numpy(dtype=float, na_value=np.nan)
    filled, measured = _fill(table, device.pairs, time, source)
    share = float(np.mean(measured))
    described: dict[str, Any] = {
        "semantic": "lag" if lag else "stall",
        "source": source,
        "transitions": len(table),
        "median_ns": float(np.median(time)),
    }
    notes = _strangers(table, device.pairs, source)
    if share < 1:
        notes += (
            f"{share:.0%} of the transitions between clock pairs are in the switch table; the "
            "others take the nearest one's cost",
        )
    if lag:
        described["min_dwell_ns"] = dwell
        first = float(filled[~np.eye(len(filled), dtype=bool)][0]) if len(filled) > 1 else 0.0
        constant = bool(np.all(filled[~np.eye(len(filled), dtype=bool)] == first))
        spread = spread_of_table(table)
        if spread is not None:
            described["latency_over_median"] = spread.to_json()
        model = Lag(first if constant else filled, float(dwell))
        return SwitchChoice(model, described, notes, spread)
    if np.isnan(energy).any():
        power_w, more = _stall_power_w(device)
        described["stall_power_w"] = power_w
        notes += more
        energy = np.where(np.isnan(energy), time * power_w * 1e-6, energy)
    energies, _ = _fill(table, device.pairs, energy, source)
    return SwitchChoice(_simplest(device.pairs, filled, energies), described, notes)


def _strangers(table: pd.DataFrame, pairs: Sequence[ClockPair], source: str) -> tuple[str, ...]:
    """A note on rows whose clocks no pair of the trace has: another GPU's table, or a finer one."""
    known = {
        "core": {pair.core_mhz for pair in pairs},
        "mem": {pair.mem_mhz for pair in pairs},
    }
    strange = np.zeros(len(table), dtype=bool)
    for column in _CLOCKS:
        values = table[column]
        clock = column.split("_")[1]
        strange |= (values.notna() & ~values.isin(list(known[clock]))).to_numpy(dtype=bool)
    if not strange.any():
        return ()
    return (
        f"{strange.sum()} of {len(table)} rows of switch table {source} name clocks that no pair "
        "of the trace has; they count only as neighbours of those it has",
    )


def _fill(
    table: pd.DataFrame, pairs: Sequence[ClockPair], values: Array, source: str
) -> tuple[Array, NDArray[np.bool_]]:
    """(F, F) values, and which of the off-diagonal ones the table holds itself, flat."""
    from scipy.spatial import cKDTree

    known = _coordinates([table[name].to_numpy(dtype=float, na_value=np.nan) for name in _CLOCKS])
    core = np.array([pair.core_mhz or np.nan for pair in pairs], dtype=float)
    mem = np.array([pair.mem_mhz or np.nan for pair in pairs], dtype=float)
    size = len(pairs)
    old, new = np.divmod(np.arange(size * size), size)
    wanted = _coordinates([core[old], mem[old], core[new], mem[new]])
    no_mem = not known[:, [1, 3]].any()  # the tool that wrote the table did not record memory
    filled, exact = np.zeros(size * size), np.zeros(size * size, dtype=bool)
    trees = {
        change: (cKDTree(known[rows]), values[rows])
        for change in ((True, False), (False, True), (True, True))
        if (rows := _changes(known, change)).any()
    }

    def nearest(change: tuple[bool, bool], rows: NDArray[np.bool_]) -> tuple[Array, Array]:
        if change not in trees:
            what = "core" if change[0] else "memory"
            raise InputError(
                f"switch table {source} has no transition of the {what} clock, which the trace's "
                "pairs vary; add one, or say --switches CORE,MEMORY with two durations"
            )
        tree, cells = trees[change]
        places = wanted[rows]
        if no_mem:
            places[:, [1, 3]] = 0.0
        distance, index = tree.query(places)
        return np.asarray(cells[index]), np.asarray(distance)

    unlocked = np.isnan(core)
    never = unlocked[old] | unlocked[new]  # the governor is never switched to or from
    for change in ((True, False), (False, True), (True, True)):
        rows = _changes(wanted, change) & ~never
        if not rows.any():
            continue
        if change == (True, True) and change not in trees:
            filled[rows] = nearest((True, False), rows)[0] + nearest((False, True), rows)[0]
            continue
        filled[rows], distance = nearest(change, rows)
        exact[rows] = distance < 1e-9
    filled[never & (old != new)] = filled.max(initial=0.0)
    exact[never] = True
    off = old != new
    return filled.reshape(size, size), exact[off] if off.any() else np.ones(1, dtype=bool)


def _coordinates(columns: Sequence[Array]) -> Array:
    """Logarithms of the four clocks; an unknown clock (governor, not varied) counts as 1 MHz."""
    return np.log(np.nan_to_num(np.column_stack(columns), nan=1.0))


def _changes(clocks: Array, change: tuple[bool, bool]) -> NDArray[np.bool_]:
    core = (clocks[:, 0] != clocks[:, 2]) == change[0]
    mem = (clocks[:, 1] != clocks[:, 3]) == change[1]
    rows: NDArray[np.bool_] = core & mem
    return rows


def _simplest(pairs: Sequence[ClockPair], time: Array, energy: Array) -> SwitchModel:
    """A two-part or constant model where it says exactly what the matrices say."""
    core = np.array([pair.core_mhz or 0 for pair in pairs])
    mem = np.array([pair.mem_mhz or 0 for pair in pairs])
    core_only = (core[:, None] != core) & (mem[:, None] == mem)
    mem_only = (core[:, None] == core) & (mem[:, None] != mem)

    def part(matrix: Array, where: NDArray[np.bool_]) -> float:
        return float(matrix[where].mean()) if where.any() else 0.0

    parts = [part(matrix, where) for matrix in (time, energy) for where in (core_only, mem_only)]
    exact = all(
        np.allclose(_two_part(pairs, *parts[i : i + 2]), matrix, rtol=1e-9, atol=0.0)
        for i, matrix in ((0, time), (2, energy))
    )
    if exact:
        return TwoPartStall(parts[0], parts[1], parts[2], parts[3])
    return MatrixStall(time, energy)
