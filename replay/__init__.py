"""Schedules at run time: play them, verify what they cost and saved, on hardware or simulated.

``clockwright.replay`` is this package, and calling it is `session.replay`: ``with
clockwright.replay(schedule, model, optimizer): ...``. A package is a module object, so its class is
exchanged for one that can be called; importing still loads no torch.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from .plan import Plan, Trigger, plan_of
from .ranks import schedule_path

if TYPE_CHECKING:
    from .session import ReplaySession

__all__ = ["Plan", "Trigger", "plan_of", "schedule_path"]


class _CallablePackage(types.ModuleType):
    """The package, callable."""

    def __call__(self, *args: Any, **kwargs: Any) -> ReplaySession:
        """Play a schedule on a training loop; see `clockwright.replay.session.replay`."""
        from .session import replay

        return replay(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
