"""A real NVIDIA GPU through NVML (nvidia-ml-py), addressed by UUID.

Constructing and probing only read. A setter first checks CLOCKWRIGHT_READ_ONLY, then the object's
own ``allow_set`` (False unless the user asked with --set-clocks), then that the pair is one the
GPU lists. That a setter returned success does not mean the clock holds: see `lock_check`.

Not modelled: NVML after a fork (open the GPU in the child), MIG instances (refused), application
clocks (deprecated by NVIDIA; locked clocks are used instead).
"""

from __future__ import annotations

import time
from typing import Any, Self

from ...data.errors import DeviceError, InputError, NotSupportedError, ReadOnlyError, RightsError
from ...data.units import GOVERNOR, ClockPair
from .nvml_errors import nvml_call, nvml_first, nvml_value
from .nvml_library import open_nvml
from .nvml_probe import (
    READ_ONLY_VARIABLE,
    is_read_only,
    probe,
    read_clock_table,
    read_info,
    read_power_limit_w,
)
from .prior_state import PriorState
from .processes import other_processes, running_processes
from .protocol import Capabilities, GpuInfo, Reading, ThrottleReason

__all__ = ["NvmlGpu"]


class NvmlGpu:
    """One NVIDIA GPU; satisfies `Gpu`. Use as a context manager, or call `close`.

    Args:
        uuid: the driver's full UUID, ``GPU-...``.
        allow_set: True lets setters through; without it each raises ReadOnlyError.

    Raises:
        NoDeviceError: no driver, no binding, or no such GPU.
        NotSupportedError: MIG is enabled on it.
    """

    def __init__(self, uuid: str, *, allow_set: bool = False) -> None:
        self._nvml = open_nvml()
        self._open = True
        self._allow_set = allow_set
        self._locked = GOVERNOR
        self._certain = True  # that `_locked` is what the driver was last told
        try:
            self._handle = nvml_call(
                f"opening GPU {uuid}", self._nvml.nvmlDeviceGetHandleByUUID, uuid
            )
            self._info = read_info(self._nvml, self._handle)
            self._pairs, self._notes = read_clock_table(self._nvml, self._handle)
            self._listed = frozenset(self._pairs)
            self._memory_varies = len({pair.mem_mhz for pair in self._pairs}) > 1
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> GpuInfo:
        """Who it is; read once at construction."""
        return self._info

    @property
    def notes(self) -> tuple[str, ...]:
        """What the driver's clock table leaves out, a sentence each."""
        return self._notes

    def pairs(self) -> tuple[ClockPair, ...]:
        """Every listed pair, memory clock descending, then core clock descending."""
        return self._pairs

    def capabilities(self) -> Capabilities:
        """What this user can do here, found by reading only; ``allow_set`` plays no part."""
        return probe(self._nvml, self._handle, self._info, self._pairs)

    def read(self, *, energy: bool = True) -> Reading:
        """One look. ``at_ns`` is the middle of the energy read, or of the others without it.

        Raises:
            DeviceError: the GPU or driver failed; a missing field is None instead.
        """
        nvml, handle = self._nvml, self._handle
        from_ns = self.now_ns()
        energy_mj = nvml_value(nvml.nvmlDeviceGetTotalEnergyConsumption, handle) if energy else None
        energy_ns = self.now_ns()
        core_mhz, mem_mhz = self._read_clocks()
        power_mw = nvml_value(nvml.nvmlDeviceGetPowerUsage, handle)
        return Reading(
            at_ns=(from_ns + (energy_ns if energy else self.now_ns())) // 2,
            core_mhz=core_mhz,
            mem_mhz=mem_mhz,
            power_w=None if power_mw is None else power_mw / 1000,
            energy_mj=energy_mj,
            temperature_c=self._read_temperature_c(),
            throttle_reasons=self._read_reasons(),
            utilization_percent=self._read_utilization_percent(),
        )

    def _read_clocks(self) -> tuple[int | None, int | None]:
        nvml = self._nvml
        return (
            nvml_value(nvml.nvmlDeviceGetClockInfo, self._handle, nvml.NVML_CLOCK_SM),
            nvml_value(nvml.nvmlDeviceGetClockInfo, self._handle, nvml.NVML_CLOCK_MEM),
        )

    def _read_temperature_c(self) -> float | None:
        nvml, sensor = self._nvml, self._nvml.NVML_TEMPERATURE_GPU
        calls = [(nvml.nvmlDeviceGetTemperature, (self._handle, sensor))]
        if hasattr(nvml, "nvmlDeviceGetTemperatureV"):  # binding 12.565 and later
            calls.append((nvml.nvmlDeviceGetTemperatureV, (self._handle, sensor)))
        celsius = nvml_first(*calls)
        return None if celsius is None else float(celsius)

    def _read_reasons(self) -> int | None:
        nvml = self._nvml
        reasons = nvml_first(
            (nvml.nvmlDeviceGetCurrentClocksEventReasons, (self._handle,)),
            (nvml.nvmlDeviceGetCurrentClocksThrottleReasons, (self._handle,)),
        )
        return None if reasons is None else int(reasons)

    def _read_utilization_percent(self) -> float | None:
        rates = nvml_value(self._nvml.nvmlDeviceGetUtilizationRates, self._handle)
        return None if rates is None else float(rates.gpu)

    def prior_state(self) -> PriorState:
        """What the GPU is set to now, to be kept before the first setter (see `PriorState`)."""
        nvml, handle = self._nvml, self._handle
        core_mhz, mem_mhz = self._read_clocks()
        reasons = self._read_reasons()
        persistence = nvml_value(nvml.nvmlDeviceGetPersistenceMode, handle)
        app = nvml.nvmlDeviceGetApplicationsClock
        return PriorState(
            uuid=self._info.uuid,
            power_limit_w=read_power_limit_w(nvml, handle),
            default_power_limit_w=self._info.default_power_limit_w,
            persistence_mode=None if persistence is None else bool(persistence),
            app_core_mhz=nvml_value(app, handle, nvml.NVML_CLOCK_GRAPHICS),
            app_mem_mhz=nvml_value(app, handle, nvml.NVML_CLOCK_MEM),
            core_mhz=core_mhz,
            mem_mhz=mem_mhz,
            clocks_user_defined=(
                None if reasons is None else bool(reasons & ThrottleReason.APPLICATIONS_CLOCKS)
            ),
        )

    def locked(self) -> ClockPair | None:
        """What this object holds locked, or None; a part it left alone is None in the pair."""
        return None if self._locked.is_governor else self._locked

    def lock(self, pair: ClockPair) -> None:
        """Request a pair, each given clock with min = max = the clock.

        ``mem_mhz`` None leaves the memory clock as it is; ``core_mhz`` None gives the core clock
        back to the governor, and the governor pair is `release`. A clock this object already
        holds there is not set again, for a call may block for milliseconds; `release` first to
        assert it anew. Where the GPU lists one memory clock only, that clock is not locked: it
        cannot be another, and such drivers refuse the call.
        A failure for any other reason than rights may leave one clock set, so both are given back
        before it is raised.

        Raises:
            ReadOnlyError: setting was not asked for, or CLOCKWRIGHT_READ_ONLY is set.
            InputError: the GPU does not list the pair.
            RightsError: this process may not set clocks; the message says what is missing.
            NotSupportedError: the GPU cannot lock this clock.
        """
        self._check_setting(f"locking {self._info.name} to {pair}")
        if pair.is_governor:
            self.release()
            return
        self._check_listed(pair)
        held = self._locked if self._certain else GOVERNOR
        try:
            if self._memory_varies and pair.mem_mhz not in (None, held.mem_mhz):
                doing = f"locking the memory clock to {pair.mem_mhz} MHz"
                setter = self._nvml.nvmlDeviceSetMemoryLockedClocks
                self._set(doing, setter, pair.mem_mhz, pair.mem_mhz)
            if pair.core_mhz is None or pair.core_mhz != held.core_mhz:
                self._lock_core(pair.core_mhz)
        except DeviceError as error:
            self._certain = False
            if not isinstance(error, RightsError):
                self._give_back_quietly()
            raise
        self._locked = ClockPair(pair.core_mhz, pair.mem_mhz or self._locked.mem_mhz)
        self._certain = True

    def _lock_core(self, core_mhz: int | None) -> None:
        nvml = self._nvml
        if core_mhz is None:
            self._set("releasing the SM clock", nvml.nvmlDeviceResetGpuLockedClocks)
        else:
            doing = f"locking the SM clock to {core_mhz} MHz"
            self._set(doing, nvml.nvmlDeviceSetGpuLockedClocks, core_mhz, core_mhz)

    def release(self) -> None:
        """Give both clocks back to the driver's governor; the second is tried if one fails.

        Raises:
            ReadOnlyError, RightsError, DeviceError: as `lock`; the first failure is raised.
        """
        self._check_setting(f"releasing the clocks of {self._info.name}")
        failure: DeviceError | None = None
        try:
            self._set("releasing the SM clock", self._nvml.nvmlDeviceResetGpuLockedClocks)
        except DeviceError as error:
            failure = error
        try:
            self._set("releasing the memory clock", self._nvml.nvmlDeviceResetMemoryLockedClocks)
        except NotSupportedError as error:
            # A GPU that never could lock its memory clock has nothing to give back.
            if self._locked.mem_mhz is not None and self._memory_varies:
                failure = failure or error
        except DeviceError as error:
            failure = failure or error
        if failure is not None:
            self._certain = False
            raise failure
        self._locked, self._certain = GOVERNOR, True

    def _give_back_quietly(self) -> None:
        """After a half-done lock: the failure that led here is the one to report."""
        try:
            self.release()
        except DeviceError:
            return

    def set_power_limit_w(self, limit_w: float) -> None:
        """Set the board power cap, and read it back.

        Raises:
            ReadOnlyError, RightsError, NotSupportedError: as `lock`.
            InputError: outside the range the driver gives.
            DeviceError: the driver reported success and kept another limit.
        """
        self._check_setting(f"setting the power limit of {self._info.name}")
        limits = self._info.power_limit_range_w
        if limits is not None and not limits[0] <= limit_w <= limits[1]:
            raise InputError(
                f"the power limit of {self._info.name} must be {limits[0]:g} to {limits[1]:g} W, "
                f"got {limit_w:g} W"
            )
        limit_mw = round(limit_w * 1000)
        nvml = self._nvml
        doing = f"setting the power limit to {limit_w:g} W"
        self._set(doing, nvml.nvmlDeviceSetPowerManagementLimit, limit_mw)
        kept_mw = nvml_value(nvml.nvmlDeviceGetPowerManagementLimit, self._handle)
        if kept_mw is not None and abs(kept_mw - limit_mw) > 1000:
            raise DeviceError(
                f"{doing} returned success, but the driver reports {kept_mw / 1000:g} W"
            )

    def reset_power_limit(self) -> None:
        """Set the cap back to the default."""
        default_w = self._info.default_power_limit_w
        if default_w is None:
            self._check_setting(f"resetting the power limit of {self._info.name}")
            raise NotSupportedError(
                f"{self._info.name} reports no default power limit to set it back to"
            )
        self.set_power_limit_w(default_w)

    def restore(self, prior: PriorState) -> None:
        """Give the clocks back to the governor, and the power limit the value it had.

        Both are tried; the first failure is raised. A lock somebody else had set before is not
        set again, since NVML cannot report it (see `PriorState`).

        Raises:
            InputError: the state is another GPU's.
            ReadOnlyError, RightsError, DeviceError: as `lock`.
        """
        if prior.uuid != self._info.uuid:
            raise InputError(f"the state kept is that of {prior.uuid}, not of {self._info.uuid}")
        failure: DeviceError | None = None
        try:
            self.release()
        except DeviceError as error:
            failure = error
        now_w = read_power_limit_w(self._nvml, self._handle)
        if prior.power_limit_w is not None and now_w != prior.power_limit_w:
            try:
                self.set_power_limit_w(prior.power_limit_w)
            except DeviceError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def busy_processes(self) -> tuple[int, ...] | None:
        """Process ids that compute on the GPU, other than this one; None if unknown."""
        return other_processes(running_processes(self._nvml, self._handle))

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC, the same for every process of the host."""
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Wait; a duration that is not positive returns at once."""
        if duration_ns > 0:
            time.sleep(duration_ns / 1e9)

    def close(self) -> None:
        """Free the handle. Sets nothing: giving clocks back is a named act, `release`."""
        if self._open:
            self._open = False
            nvml_value(self._nvml.nvmlShutdown)

    def _check_setting(self, doing: str) -> None:
        if is_read_only():
            raise ReadOnlyError(
                f"{doing} is forbidden: {READ_ONLY_VARIABLE} is set; unset it to allow setting"
            )
        if not self._allow_set:
            raise ReadOnlyError(f"{doing} needs --set-clocks: by default nothing is ever set")

    def _check_listed(self, pair: ClockPair) -> None:
        if pair in self._listed:
            return
        if not self._pairs:
            raise NotSupportedError(
                f"{self._info.name} cannot be locked to {pair}: {'; '.join(self._notes)}"
            )
        rows = [p for p in self._pairs if pair.mem_mhz in (None, p.mem_mhz)]
        if not rows:
            listed = sorted({p.mem_mhz for p in self._pairs if p.mem_mhz}, reverse=True)
            clocks = ", ".join(map(str, listed))
            raise InputError(
                f"{self._info.name} has no memory clock {pair.mem_mhz} MHz; it lists {clocks}"
            )
        cores = sorted({p.core_mhz for p in rows if p.core_mhz is not None})
        if pair.core_mhz is not None and pair.core_mhz not in cores:
            wanted = pair.core_mhz
            nearest = min(cores, key=lambda core_mhz: abs(core_mhz - wanted))
            raise InputError(
                f"{self._info.name} has no core clock {pair.core_mhz} MHz"
                f"{'' if pair.mem_mhz is None else f' at memory clock {pair.mem_mhz} MHz'}; "
                f"it lists {cores[0]} to {cores[-1]}, nearest {nearest}"
            )

    def _set(self, doing: str, function: Any, *arguments: int) -> None:
        """Every setter ends here, so nothing is set without the check just before it."""
        self._check_setting(doing)
        nvml_call(f"{doing} on {self._info.name}", function, self._handle, *arguments)
