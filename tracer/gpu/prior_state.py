"""What a GPU was set to before clockwright changes anything, to be given back afterwards.

NVML can set locked clocks but has no getter for them: a lock that somebody else set before us
cannot be read back, only suspected, from the reason bit "user defined clocks" or from a clock that
stays put. So giving back means: clocks to the driver's governor (which drops such a foreign lock),
power limit to what it was. A suspicion is kept in `clocks_user_defined`, for the caller to warn
about before setting anything.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from ...data.errors import FormatError

__all__ = ["PriorState"]


@dataclass(frozen=True)
class PriorState:
    """A GPU's settings and readings at one moment. What the driver would not say is None.

    Attributes:
        uuid: whose state it is.
        power_limit_w: the power cap, which can be read and is restored.
        default_power_limit_w: the cap at power-up.
        persistence_mode: False means the driver forgets its settings when its last user leaves.
        app_core_mhz: application clock of the core; None where deprecated.
        app_mem_mhz: application clock of the memory.
        core_mhz: SM clock reported at that moment; not a setting.
        mem_mhz: memory clock reported at that moment; not a setting.
        clocks_user_defined: the driver said that clocks were limited by a user's setting: somebody
            else's lock or application clocks. It can only be suspected, not restored.
    """

    uuid: str
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    persistence_mode: bool | None = None
    app_core_mhz: int | None = None
    app_mem_mhz: int | None = None
    core_mhz: int | None = None
    mem_mhz: int | None = None
    clocks_user_defined: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, for a journal."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object) -> Self:
        """Read back what `to_json` wrote; unknown fields of a later release are refused.

        Raises:
            FormatError: not such a record.
        """
        kinds: dict[str, tuple[type, ...]] = {
            name: (bool,) if name in {"persistence_mode", "clocks_user_defined"} else (int, float)
            for name in cls.__dataclass_fields__
        }
        kinds["uuid"] = (str,)
        if not isinstance(values, dict) or not isinstance(values.get("uuid"), str):
            raise FormatError("expected a prior GPU state: an object with at least a uuid")
        for name, value in values.items():
            if name not in kinds:
                raise FormatError(f"prior GPU state: unknown field {name!r}")
            is_flag = isinstance(value, bool) and bool not in kinds[name]
            if value is not None and (is_flag or not isinstance(value, kinds[name])):
                raise FormatError(f"prior GPU state: {name} has the wrong type, got {value!r}")
        return cls(**values)
