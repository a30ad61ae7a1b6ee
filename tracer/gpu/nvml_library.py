"""Load NVIDIA's NVML binding and open the driver; tell the wrong ``pynvml`` from the right one.

Two projects on PyPI have offered a module named ``pynvml``: NVIDIA's own nvidia-ml-py (one file,
pynvml.py) and the older ``pynvml`` fork (a package folder), which hides the former where both are
installed and lacks newer calls. Only NVIDIA's is used here.
"""

from __future__ import annotations

import importlib
from typing import Any

from ...data.errors import NoDeviceError
from .nvml_errors import nvml_call

__all__ = ["load_binding", "open_nvml"]

_NEEDED = (
    "nvmlInitWithFlags",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceSetMemoryLockedClocks",
    "nvmlDeviceGetCurrentClocksEventReasons",
)


def load_binding() -> Any:
    """Import nvidia-ml-py's ``pynvml`` module.

    Raises:
        NoDeviceError: it is not installed, or another package of that name is in its place.
    """
    try:
        binding = importlib.import_module("pynvml")
    except ImportError:
        raise NoDeviceError(
            "NVIDIA GPUs are reached through nvidia-ml-py, which is not installed: "
            "pip install nvidia-ml-py"
        ) from None
    missing = [name for name in _NEEDED if not hasattr(binding, name)]
    if hasattr(binding, "__path__") or missing:
        where = getattr(binding, "__file__", None) or "an unknown place"
        why = f"; it lacks {missing[0]}" if missing else ""
        raise NoDeviceError(
            f"the module pynvml at {where} is not NVIDIA's nvidia-ml-py, but the unrelated PyPI "
            f"package 'pynvml' or an old release{why}: "
            "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        )
    return binding


def open_nvml() -> Any:
    """Load the binding and initialise NVML; pair with ``nvmlShutdown`` (NVML counts them).

    Raises:
        NoDeviceError: no binding, no driver library, or no driver loaded.
        DeviceError: the driver is there and failed.
    """
    binding = load_binding()
    nvml_call("opening the NVIDIA driver", binding.nvmlInitWithFlags, 0)
    return binding
