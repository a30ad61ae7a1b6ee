"""Charts of what files hold: the Pareto front, and the timeline of a schedule.

Charts compute nothing that the optimizer should: they take numbers and draw them. matplotlib is
loaded when a chart is drawn, always with the Agg back end, and files are written whole or not at
all. PNG and SVG come from the same drawing.
"""

from __future__ import annotations

from .pareto import Curve, Mark, draw_pareto
from .timeline import draw_timeline

__all__ = ["Curve", "Mark", "draw_pareto", "draw_timeline"]
