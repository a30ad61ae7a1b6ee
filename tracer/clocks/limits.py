"""What a keeper allows a lease: a table of supported pairs, and a rate of switches."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ...data.errors import InputError, KeeperError
from ...data.units import ClockPair
from ..gpu.protocol import Gpu

__all__ = ["NS_PER_S", "Limits", "SwitchRate", "check_table"]

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Limits:
    """What a keeper allows each lease.

    Attributes:
        max_switches_per_s: clock and power requests to the driver in any one second.
        heartbeat_s: an owner silent for this long has lost its lease.
        settle_s: how long the driver may take to report a new clock.
        kept_events: events remembered; older ones are dropped.
    """

    max_switches_per_s: int = 50
    heartbeat_s: float = 5.0
    settle_s: float = 0.3
    kept_events: int = 65_536


def check_table(gpu: Gpu, table: Mapping[int, ClockPair]) -> None:
    """Refuse a table that names a pair the GPU does not list.

    Raises:
        InputError: the first such pair, with its sequence number.
    """
    listed = set(gpu.pairs())
    cores = {pair.core_mhz for pair in listed} | {None}
    mems = {pair.mem_mhz for pair in listed} | {None}
    for sequence, pair in table.items():
        partial = pair.core_mhz is None or pair.mem_mhz is None
        known = partial and pair.core_mhz in cores and pair.mem_mhz in mems
        if not known and pair not in listed:
            raise InputError(
                f"{gpu.info.name} does not list the pair {pair} that sequence number {sequence} "
                f"names; `clockwright doctor` shows the pairs of {gpu.info.uuid}"
            )


class SwitchRate:
    """Counts requests to the driver over the last second.

    Args:
        most: how many are allowed in any one second.
        uuid: the GPU, for the message.
    """

    def __init__(self, most: int, uuid: str) -> None:
        self._most, self._uuid = most, uuid
        self._recent_ns: deque[int] = deque()

    def count(self, now_ns: int) -> None:
        """Count one more request.

        Raises:
            KeeperError: it would be one too many, and is not counted.
        """
        while self._recent_ns and self._recent_ns[0] <= now_ns - NS_PER_S:
            self._recent_ns.popleft()
        if len(self._recent_ns) >= self._most:
            raise KeeperError(
                f"more than {self._most} clock switches in one second on {self._uuid}: each "
                "call holds the driver, which every process of the host shares, for 3 to 6 ms "
                "(measured on a V100). Use a schedule that dwells longer, or have the operator "
                "start the keeper with a higher --max-switches"
            )
        self._recent_ns.append(now_ns)
