"""What a session wrote, read back: the step as a whole, and the mixes as points of the fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...data.errors import FormatError
from ..measure.sensed_fit import MixPoint, point_of

__all__ = ["WholeStep", "mix_points", "read_record", "whole_step"]

_PARTS = ("step", "timeline", "loops", "mixes")
_MOST_STEPS_MHZ = 2.02  # no reading is over twice the fastest sensed: a disturbed probe


@dataclass(frozen=True)
class WholeStep:
    """The step with the profiler off: means over its windows before and after everything else."""

    time_ns: float
    time_sd_ns: float
    energy_mj: float
    energy_sd_mj: float
    steps: int
    core_mhz: float
    mem_mhz: int | None
    temperature_c: float | None
    throttle_reasons: int | None
    drift: float | None


def read_record(folder: Path) -> dict[str, Any]:
    """What a `Session` wrote into a folder, if every part that a trace needs is there.

    Raises:
        FormatError: it is not.
    """
    path = folder / "raw.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: no record of a measurement: {error}") from error
    if not isinstance(raw, dict):
        raise FormatError(
            f"{path}: no record of a measurement: not an object but a list or a value"
        )
    lacking = [part for part in ("step", "loops", "mixes") if not raw.get(part)]
    if not (folder / "timeline.json").is_file():
        lacking.append("timeline")
    lacking.sort(key=_PARTS.index)
    if lacking:
        raise FormatError(
            f"{path}: the measurement ended before part {lacking[0]!r}; measure again, or longer"
        )
    return raw


def whole_step(raw: Mapping[str, Any]) -> WholeStep:
    """Means over the plain step's windows; two, where it was measured again at the end."""
    plain = [raw[name]["plain"] for name in ("step", "again") if name in raw]
    windows = [entry["window"] for entry in plain]
    time_ns = np.array([entry["time_ns"] for entry in plain])
    energy_mj = np.array([entry["energy_mj"] for entry in plain])
    relative = [w["power_error_w"] / w["power_w"] for w in windows]
    core = [w["core_mhz"] for w in windows if w["core_mhz"] is not None]
    core = core or [entry["sensed_mhz"] for entry in _probed(raw) if entry["sensed_mhz"]]
    heat = [w["temperature_c"] for w in windows if w["temperature_c"] is not None]
    reasons = [w["throttle_reasons"] for w in windows if w["throttle_reasons"] is not None]
    if not core:
        raise FormatError("the record holds neither a reported nor a sensed clock of the step")
    mem = next((w["mem_mhz"] for w in windows if w["mem_mhz"] is not None), None)
    return WholeStep(
        time_ns=float(time_ns.mean()),
        time_sd_ns=float(np.mean([entry["time_sd_ns"] for entry in plain])),
        energy_mj=float(energy_mj.mean()),
        energy_sd_mj=float(energy_mj.mean() * np.mean(relative)),
        steps=int(sum(entry["steps"] for entry in plain)),
        core_mhz=float(np.mean(core)),
        mem_mhz=mem,
        temperature_c=float(np.mean(heat)) if heat else None,
        throttle_reasons=int(np.bitwise_or.reduce(reasons)) if reasons else None,
        drift=float(time_ns[1] / time_ns[0] - 1) if len(time_ns) > 1 else None,
    )


def _probed(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [raw[name]["probed"] for name in ("step", "again") if name in raw]


def mix_points(raw: Mapping[str, Any]) -> list[MixPoint]:
    """The mixes as points of the fit; the fastest clock reported bounds those sensed."""
    reported = [m["window"]["core_mhz"] for m in raw["mixes"] if m["window"]["core_mhz"]]
    sensed = [m["sensed_mhz"] for m in raw["mixes"] if m["sensed_mhz"]]
    most = float(max(reported)) if reported else _MOST_STEPS_MHZ * float(np.median(sensed))
    return [point_of(mix, most) for mix in raw["mixes"]]
