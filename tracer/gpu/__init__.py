"""GPU access: one protocol, two makers (NVML and simulated). Never imports torch."""

from .protocol import Capabilities, Capability, Gpu, GpuInfo, Reading, ThrottleReason
from .select import GpuListing, list_gpus, open_gpu

__all__ = [
    "Capabilities",
    "Capability",
    "Gpu",
    "GpuInfo",
    "GpuListing",
    "Reading",
    "ThrottleReason",
    "list_gpus",
    "open_gpu",
]
