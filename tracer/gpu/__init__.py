"""GPU access: one protocol, two makers (NVML and simulated). Never imports torch."""

from .protocol import Capabilities, Capability, Gpu, GpuInfo, Reading, ThrottleReason

__all__ = ["Capabilities", "Capability", "Gpu", "GpuInfo", "Reading", "ThrottleReason"]
