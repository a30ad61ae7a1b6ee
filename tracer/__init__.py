"""Recording: what a step launches, and what each kernel takes at each clock pair.

Submodules: `gpu` (NVML and simulated GPUs), `clocks` (the keeper), `measure`, `workloads`,
`importers`, and the recorders. torch is loaded only where a model is captured or run.
"""

from .work import KernelWork, StepItem, StepWork

__all__ = ["KernelWork", "StepItem", "StepWork"]
