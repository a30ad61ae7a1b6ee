"""Workloads: the steps clockwright traces, by name, from Hugging Face, or the user's own.

``load(spec, options)`` gives a `Workload`. ``Workload.build(device)`` makes a real `Step`;
``Workload.capture()`` records the kernels of one step without a GPU. Torch is loaded by these two,
never by importing this package.

A user's function is called with ``device`` and the options it names, and returns a `Step`,
``(model, optimizer, run)``, or a callable that does one step; a function that returns anything
else is itself the step.
"""

from __future__ import annotations

from .registry import Workload, known, load
from .step import Step

__all__ = ["Step", "Workload", "known", "load"]
