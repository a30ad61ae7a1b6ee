"""Which GPUs this user's CUDA programs see, in CUDA's order, from the environment alone.

CUDA_VISIBLE_DEVICES lists indexes, UUIDs or unique beginnings of UUIDs; the first invalid entry
ends the list. CUDA_DEVICE_ORDER says what an index counts: PCI_BUS_ID is NVML's own order, while
CUDA's default, FASTEST_FIRST, sorts by a speed that only CUDA knows. With GPUs of one model the
two orders agree; with different models an index is ambiguous here, and is refused rather than
guessed. Left out: an MPS server that renumbers its clients' devices.

Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...data.errors import InputError, NotSupportedError

__all__ = ["find_uuid", "visible_uuids"]


def find_uuid(prefix: str, uuids: Sequence[str]) -> str:
    """The one UUID that starts with ``prefix`` (letter case aside).

    Raises:
        InputError: none does, or several do.
    """
    found = [uuid for uuid in uuids if uuid.lower().startswith(prefix.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{prefix!r} begins {len(found)} GPUs' UUIDs: {', '.join(found)}")
    raise InputError(f"no GPU has a UUID beginning {prefix!r}; there are: {', '.join(uuids)}")


def visible_uuids(
    uuids: Sequence[str], names: Sequence[str | None], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """The UUIDs of the visible GPUs, in the order in which CUDA numbers them.

    Args:
        uuids: every GPU's, in NVML's order (by PCI address).
        names: their product names, alike; None for a GPU that cannot be reached.
        environment: where CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are looked up.

    Raises:
        InputError: an index is ambiguous: the models differ and the order is not PCI_BUS_ID, or
            a GPU cannot be reached, which CUDA may or may not count.
        NotSupportedError: a MIG instance is named.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        _check_order(names, environment, "nvml:INDEX")
        return tuple(uuids)
    visible: list[str] = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.upper().startswith("MIG"):
            raise NotSupportedError(
                f"CUDA_VISIBLE_DEVICES names the MIG instance {entry!r}: clocks, power and energy "
                "belong to the whole GPU, so a MIG instance cannot be profiled; name a GPU"
            )
        if entry.lower().startswith("gpu-"):
            try:
                uuid = find_uuid(entry, uuids)
            except InputError:
                break
        elif entry.isascii() and entry.isdigit() and int(entry) < len(uuids):
            _check_order(names, environment, f"CUDA_VISIBLE_DEVICES={listed}")
            uuid = uuids[int(entry)]
        else:
            break
        if uuid in visible:
            return ()  # CUDA takes a repeated GPU for an error and shows none
        visible.append(uuid)
    return tuple(visible)


def _check_order(names: Sequence[str | None], environment: Mapping[str, str], what: str) -> None:
    if None in names:
        raise InputError(
            f"{what} is ambiguous here: GPU {names.index(None)} cannot be reached, and CUDA may "
            "leave it out of its numbers; name GPUs by UUID"
        )
    if len(set(names)) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise InputError(
            f"{what} is ambiguous here: the GPUs differ ({', '.join(map(str, names))}) and CUDA "
            "numbers them fastest first; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"
        )
