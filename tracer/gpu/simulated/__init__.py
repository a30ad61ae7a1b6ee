"""Simulated GPUs behind the `Gpu` protocol; every number they give is modelled, not measured."""

from __future__ import annotations

from .behaviour import Faults, Noise
from .gpu import SimulatedGpu, open_simulated
from .result import SimulatedRun
from .specs import SPECS
from .switching import SwitchBehaviour
from .table_player import TablePlayer

__all__ = [
    "SPECS",
    "Faults",
    "Noise",
    "SimulatedGpu",
    "SimulatedRun",
    "SwitchBehaviour",
    "TablePlayer",
    "open_simulated",
]
