"""From a spec and options to a `Workload`: by name, Hugging Face, script, or module.

Loading checks the spec and its options and runs nothing of the user's; torch is loaded by `build`
and `capture` only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...data.errors import InputError
from .builtin import BUILTIN
from .options import OptionValue

if TYPE_CHECKING:
    from ..work import StepWork
    from .step import Step

__all__ = ["Workload", "known", "load"]

_FORMS = "hf:NAME, train.py:step, package.module:step"


@dataclass(frozen=True)
class Workload:
    """A step that can be built on a device, or captured without one.

    Attributes:
        spec: as the user wrote it.
        options: every option, resolved, in a fixed order.
        source: a hash of the user's script, empty for our own models.
    """

    spec: str
    options: Mapping[str, OptionValue]
    source: str = ""
    _build: Callable[[str], Step] = field(repr=False, compare=False, kw_only=True)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over spec, options and source: equal fingerprints mean the same step."""
        text = json.dumps([self.spec, dict(self.options), self.source], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def build(self, device: str = "cuda") -> Step:
        """Build the step for real: weights are allocated on ``device``.

        Raises:
            InputError: there is no such device here.
            WorkloadError: the user's code raised.
        """
        from .device import check_device
        from .failures import guarded

        check_device(device)
        return guarded(lambda: self._build(device), self.spec)

    def capture(self) -> StepWork:
        """Record the kernels of one step on fake tensors: no weights, no GPU, deterministic.

        Raises:
            WorkloadError: the user's code raised, or its step cannot be captured.
        """
        from .capture import capture_step

        return capture_step(lambda: self._build("cpu"), self.spec, dict(self.options))


def known() -> tuple[str, ...]:
    """Names of our own workloads."""
    return tuple(BUILTIN)


def load(spec: str, options: Mapping[str, OptionValue] | None = None) -> Workload:
    """Find a workload and check its options.

    Args:
        spec: a name of `known`, ``hf:NAME``, ``train.py:step`` or ``package.module:step``.
        options: option values, as text or numbers.

    Raises:
        InputError: no such workload, or a wrong option.
    """
    given = dict(options or {})
    builtin = BUILTIN.get(spec)
    if builtin is not None:
        resolved = builtin.resolve(given)
        return Workload(spec, resolved, _build=lambda device: builtin.build(resolved, device))
    place, colon, name = spec.rpartition(":")
    if colon and place == "hf":
        from . import huggingface

        resolved = huggingface.resolve(name, given)
        return Workload(
            spec, resolved, _build=lambda device: huggingface.build(name, resolved, device)
        )
    if colon and place and name:
        from .user import UserFunction

        function = UserFunction.find(place, name)
        free = function.options(given)
        return Workload(
            spec,
            free,
            function.source_hash,
            _build=lambda device: function.build(free, device),
        )
    raise InputError(f"unknown workload {spec!r}; known: {', '.join(known())}, or {_FORMS}")
