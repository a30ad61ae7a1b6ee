"""Recording a step on a real GPU: measure, fit, reconcile, and put together a trace folder."""

from __future__ import annotations

__all__: list[str] = []
