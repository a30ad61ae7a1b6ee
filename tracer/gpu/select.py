"""Find and open a GPU by the text a user gives: ``nvml:0``, ``nvml:GPU-1a2b``, ``sim:rtx3080ti``.

``nvml:N`` counts as CUDA does in this environment (see `visible`), so that the GPU traced is the
one a training script calls ``cuda:N``; the index is turned into a UUID at once and not used again.
``sim:NAME?seed=3`` opens a simulated GPU; what it gives is modelled, not measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl

from ...data.errors import DeviceError, InputError, NoDeviceError, NotSupportedError
from .nvml_errors import nvml_call, nvml_value
from .protocol import Gpu

__all__ = ["GpuListing", "find_nvml_uuid", "list_gpus", "open_gpu"]

_EXPECTED = "expected nvml:INDEX, nvml:GPU-UUID or sim:NAME"


@dataclass(frozen=True)
class GpuListing:
    """One GPU that `open_gpu` could be asked for.

    Attributes:
        spec: the text that names it for good: ``nvml:GPU-...`` or ``sim:...``; a GPU that cannot
            be reached has no such text, and is listed by its NVML index.
        name: its product name; None if it would not say.
        cuda_index: its number in this environment's CUDA programs; None if it is hidden from
            them, or if the numbering is ambiguous.
        problem: why it cannot be used; None if it can.
    """

    spec: str
    name: str | None
    cuda_index: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class _Present:
    uuid: str
    name: str | None
    problem: str | None = None


def open_gpu(spec: str, *, allow_set: bool = False, seed: int | None = None) -> Gpu:
    """Open a GPU.

    Args:
        spec: ``nvml:INDEX``, ``nvml:GPU-UUID`` (or a unique beginning), ``sim:NAME[?seed=N]``.
        allow_set: let setters through on a real GPU (the user said --set-clocks). A simulated
            GPU may always be set.
        seed: the simulation's seed, unless the spec gives one.

    Raises:
        InputError: the text names no GPU; the message lists what may be named.
        NoDeviceError: no NVIDIA driver or no visible GPU.
        NotSupportedError: it is, or is split into, MIG instances.
    """
    kind, colon, rest = spec.strip().partition(":")
    kind = kind.lower()
    if colon and kind == "sim":
        return _open_simulated(rest, seed)
    if colon and kind == "nvml":
        from .nvml import NvmlGpu

        return NvmlGpu(find_nvml_uuid(rest), allow_set=allow_set)
    raise InputError(f"{_EXPECTED}, got {spec!r}; there are: {_known()}")


def find_nvml_uuid(which: str, environment: Mapping[str, str] = os.environ) -> str:
    """The full UUID of a real GPU.

    Args:
        which: a CUDA index (``0``), a UUID, or a unique beginning of one. A UUID reaches every
            GPU of the machine, hidden by CUDA_VISIBLE_DEVICES or not.
        environment: where CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are looked up.

    Raises:
        InputError: not such a GPU; the message lists those there are.
        NoDeviceError: no driver, no GPU, or none visible.
        NotSupportedError: a MIG instance is named.
    """
    from .visible import find_uuid, visible_uuids

    which = which.strip()
    if which.upper().startswith("MIG"):
        raise NotSupportedError(
            f"nvml:{which} is a MIG instance: clocks, power and energy belong to the whole GPU; "
            "name a GPU without MIG"
        )
    is_uuid = which.lower().startswith("gpu-")
    if not is_uuid and not (which.isascii() and which.isdigit()):
        raise InputError(f"{_EXPECTED}, got nvml:{which}; there are: {_known()}")
    present = _present_gpus()
    uuids = [gpu.uuid for gpu in present]
    if not present:
        raise NoDeviceError("the NVIDIA driver is loaded, but it finds no GPU (see nvidia-smi -L)")
    if is_uuid:
        return find_uuid(which, uuids)
    visible = visible_uuids(uuids, [gpu.name for gpu in present], environment)
    if not visible:
        raise NoDeviceError(
            f"CUDA_VISIBLE_DEVICES={environment.get('CUDA_VISIBLE_DEVICES', '')!r} hides all "
            f"{len(present)} GPUs; unset it, or name a GPU by UUID: {', '.join(uuids)}"
        )
    if int(which) >= len(visible):
        raise InputError(
            f"nvml:{which}: only {len(visible)} GPU{'s are' if len(visible) > 1 else ' is'} "
            f"visible, numbered from 0: {', '.join(visible)}"
        )
    return visible[int(which)]


def list_gpus(environment: Mapping[str, str] = os.environ) -> tuple[GpuListing, ...]:
    """Every GPU of this machine, then every simulated one; never fails for a missing driver."""
    try:
        real = _list_real(environment)
    except DeviceError:
        real = ()
    return real + tuple(GpuListing(f"sim:{name}", name) for name in _simulated_names())


def _list_real(environment: Mapping[str, str]) -> tuple[GpuListing, ...]:
    from .nvml import NvmlGpu
    from .visible import visible_uuids

    present = _present_gpus()
    visible: tuple[str, ...] = ()
    # Where the numbers are ambiguous, GPUs can still be named by UUID.
    with suppress(InputError, NotSupportedError):
        visible = visible_uuids([g.uuid for g in present], [g.name for g in present], environment)
    listings = []
    for gpu in present:
        problem = gpu.problem
        try:
            if problem is None:
                NvmlGpu(gpu.uuid).close()
        except DeviceError as error:
            problem = str(error)
        index = visible.index(gpu.uuid) if gpu.uuid in visible else None
        listings.append(GpuListing(f"nvml:{gpu.uuid}", gpu.name, index, problem))
    return tuple(listings)


def _present_gpus() -> list[_Present]:
    """Every GPU in NVML's order, the lost ones as placeholders so that indexes stay right."""
    from .nvml_library import open_nvml

    nvml = open_nvml()
    try:
        present = []
        for index in range(nvml_call("counting GPUs", nvml.nvmlDeviceGetCount)):
            try:
                handle = nvml_call(f"opening GPU {index}", nvml.nvmlDeviceGetHandleByIndex, index)
                uuid = nvml_call(f"reading GPU {index}'s UUID", nvml.nvmlDeviceGetUUID, handle)
                name = nvml_value(nvml.nvmlDeviceGetName, handle)
            except DeviceError as error:
                present.append(_Present(f"unreachable-{index}", None, str(error)))
                continue
            present.append(_Present(str(uuid), str(name or "unnamed")))
        return present
    finally:
        nvml_value(nvml.nvmlShutdown)


def _open_simulated(rest: str, seed: int | None) -> Gpu:
    name, _, query = rest.partition("?")
    try:
        options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
        given = int(options.pop("seed")) if "seed" in options else None
    except ValueError:
        raise InputError(
            f"options of a simulated GPU are written sim:{name}?seed=3, got {query!r}"
        ) from None
    if options:
        raise InputError(f"sim:{name} has no option {', '.join(sorted(options))}; known: seed")
    if min(given or 0, seed or 0) < 0:
        raise InputError(f"the seed of a simulated GPU must be 0 or more, got sim:{rest}")
    if given is not None and seed is not None and given != seed:
        raise InputError(f"sim:{rest} asks for seed {given}, and the seed option for {seed}")
    from .simulated import open_simulated

    return open_simulated(name, seed=given if given is not None else (seed or 0))


def _simulated_names() -> tuple[str, ...]:
    from .simulated.specs import SPECS

    return tuple(SPECS)


def _known() -> str:
    return ", ".join(gpu.spec for gpu in list_gpus())
