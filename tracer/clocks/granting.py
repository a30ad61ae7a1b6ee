"""Whether a lease may be granted, asked one thing at a time before anything is set.

Read-only, the guardian, the GPU's lock, a dead keeper's leftovers, the table, what the GPU can do,
room for the journal, and at last whether the driver lets this process set anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...data.errors import KeeperError, NotSupportedError, ReadOnlyError, RightsError
from ...data.units import GOVERNOR, ClockPair
from ..gpu.nvml_probe import READ_ONLY_VARIABLE, is_read_only
from ..gpu.prior_state import PriorState
from ..gpu.protocol import Capability, Gpu
from .guardian import Guardian
from .journal import POWER_LIMIT, GpuJournal, JournalEntry, boot_id, default_state_dir
from .lease import Lease
from .limits import Limits
from .restore import OpenGpu, repair_locked

__all__ = ["KeeperOptions", "grant_dry", "grant_real"]


@dataclass(frozen=True)
class KeeperOptions:
    """How a keeper was started.

    Attributes:
        dry: set nothing, whatever is asked.
        state: the folder of journals.
        limits: what each lease allows.
        poll_sleep_s: time between looks at a page; 0 spins.
        standing: the pair that GPUs are given back to; the governor unless the operator runs the
            host at locked clocks (NVML cannot report those, so they must be said).
        gpus: UUIDs served; empty for all.
    """

    dry: bool = False
    state: Path = field(default_factory=default_state_dir)
    limits: Limits = field(default_factory=Limits)
    poll_sleep_s: float = 20e-6
    standing: ClockPair = GOVERNOR
    gpus: tuple[str, ...] = ()


def new_entry(gpu: Gpu, options: KeeperOptions, keeper_id: str, owner_pid: int) -> JournalEntry:
    """What a lease on ``gpu`` must give back, as it stands now."""
    return JournalEntry(
        boot=boot_id(),
        keeper_id=keeper_id,
        keeper_pid=os.getpid(),
        owner_pid=owner_pid,
        prior=_prior_state(gpu),
        standing=options.standing,
    )


def grant_dry(
    uuid: str,
    table: Mapping[int, ClockPair],
    options: KeeperOptions,
    open_gpu: OpenGpu,
    *,
    keeper_id: str,
    owner_pid: int,
) -> Lease:
    """A lease that sets nothing: the GPU is opened for reading, no journal is kept.

    Raises:
        InputError: the table names a pair the GPU does not list.
        DeviceError: the GPU cannot be opened.
    """
    gpu = open_gpu(uuid, False)
    try:
        entry = new_entry(gpu, options, keeper_id, owner_pid)
        return Lease(gpu, table, options.limits, entry, journal=None, dry=True)
    except BaseException:
        gpu.close()
        raise


def grant_real(
    uuid: str,
    table: Mapping[int, ClockPair],
    options: KeeperOptions,
    open_gpu: OpenGpu,
    *,
    guardian: Guardian,
    keeper_id: str,
    owner_pid: int,
) -> tuple[Lease, list[str]]:
    """A lease that may set, and what its owner should be warned of.

    Raises:
        ReadOnlyError: CLOCKWRIGHT_READ_ONLY forbids setting.
        DeviceBusyError: another keeper holds the GPU.
        RightsError: the driver refuses this process.
        NotSupportedError: the GPU cannot lock what the table names.
        InputError: the table names a pair the GPU does not list.
        KeeperError: no guardian, no room for the journal, or leftovers that cannot be repaired.
    """
    if is_read_only():
        raise ReadOnlyError(
            f"{READ_ONLY_VARIABLE} is set for the clock keeper: it sets nothing; use dry mode"
        )
    guardian.wait_ready()
    journal = GpuJournal.acquire(options.state, uuid, wait_s=2.0)
    gpu: Gpu | None = None
    try:
        note = repair_locked(journal, open_gpu)
        if note is not None and not note.done:
            raise KeeperError(f"{note.text}; nothing more is set on it until that is repaired")
        gpu = open_gpu(uuid, True)
        entry = new_entry(gpu, options, keeper_id, owner_pid)
        lease = Lease(gpu, table, options.limits, entry, journal=journal, dry=False)
        _check_capabilities(gpu, table)
        journal.write(entry)
        _check_rights(gpu, journal, entry)
    except BaseException:
        if gpu is not None:
            gpu.close()
        journal.close()
        raise
    return lease, _warnings(entry)


def _prior_state(gpu: Gpu) -> PriorState:
    read = getattr(gpu, "prior_state", None)
    prior = read() if read is not None else None
    if isinstance(prior, PriorState):
        return prior
    return PriorState(gpu.info.uuid, power_limit_w=gpu.info.power_limit_w)


def _warnings(entry: JournalEntry) -> list[str]:
    if entry.prior.clocks_user_defined and entry.standing.is_governor:
        return [
            f"the driver says that somebody has set clocks on {entry.prior.uuid} already; NVML "
            "cannot tell which, so it will be given back to the governor. Start the keeper with "
            "--standing-pair to have it given back to that setting"
        ]
    return []


def _check_capabilities(gpu: Gpu, table: Mapping[int, ClockPair]) -> None:
    capabilities = gpu.capabilities()
    wants = {
        "lock_core": any(pair.core_mhz is not None for pair in table.values()),
        "lock_memory": len({pair.mem_mhz for pair in table.values()} - {None}) > 1,
    }
    for name, wanted in wants.items():
        answer = getattr(capabilities, name)
        if wanted and answer in (Capability.NOT_SUPPORTED, Capability.READ_ONLY):
            kind = ReadOnlyError if answer is Capability.READ_ONLY else NotSupportedError
            why = capabilities.reasons.get(name, answer.value)
            raise kind(f"{gpu.info.name}: {name.replace('_', ' ')} is not possible: {why}")


def _check_rights(gpu: Gpu, journal: GpuJournal, entry: JournalEntry) -> None:
    """Learn before training starts that the driver will refuse.

    Where this process seems to lack the right, the driver itself is asked, by setting the power
    cap to the value it has; only its refusal counts.
    """
    capabilities = gpu.capabilities()
    if capabilities.lock_core is not Capability.NO_RIGHTS:
        return
    limit_w = entry.prior.power_limit_w
    try:
        if limit_w is None or capabilities.power_limit is Capability.NOT_SUPPORTED:
            raise RightsError(capabilities.reasons.get("lock_core", "no rights"))
        journal.write(entry.touching(POWER_LIMIT))
        gpu.set_power_limit_w(limit_w)
    except RightsError as error:
        journal.clear()
        raise RightsError(
            f"{gpu.info.name} ({gpu.info.uuid}) can lock clocks, but this user may not: {error}"
        ) from error
    journal.write(entry)
