"""Whether a device named by the user is there."""

from __future__ import annotations

import torch

from ...data.errors import InputError

__all__ = ["check_device"]


def check_device(device: str) -> None:
    """Refuse a device this process cannot build on.

    Raises:
        InputError: not a device's name, or not there.
    """
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise InputError(f"expected a device such as cuda:0 or cpu, got {device!r}") from None
    if wanted.type == "cuda":
        count = torch.cuda.device_count()
        if (wanted.index or 0) >= count:
            raise InputError(
                f"device {device} is not here: PyTorch sees {count} CUDA devices "
                f"(torch {torch.__version__}); use --gpu sim:NAME without a GPU"
            )
    elif wanted.type != "cpu":
        raise InputError(f"a workload is built on cuda or cpu, got {device!r}")
