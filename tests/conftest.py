"""Fixtures every test may use."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import settings

from clockwright.data.trace import Baseline, Trace
from clockwright.data.units import GOVERNOR
from tests.fake_nvml.fixture import fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]

settings.register_profile("ci", derandomize=True)

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder of public measured sweeps that lies beside a checkout, where it does."""
    folder = ROOT.parent / "shared" / "datasets"
    if not folder.is_dir():
        pytest.skip("the public measured sweeps are not beside this checkout")
    return folder


@pytest.fixture
def small_trace() -> Trace:
    """Two signatures, three kernels, three pairs; round numbers that a reader can add up."""
    time_ns = [[1000.0, 1000.0, 1100.0], [2000.0, 2000.0, 2600.0]]
    energy_mj = [[0.3, 0.25, 0.2], [0.5, 0.45, 0.4]]
    cells = [(s, p) for s in range(2) for p in range(3)]
    return Trace(
        gpu={"name": "test GPU", "simulated": True},
        workload={"name": "test step"},
        provenance="simulated",
        timeline=pd.DataFrame(
            {
                "index": range(3),
                "stream": 7,
                "start_ns": [0, 1000, 3000],
                "duration_ns": [1000, 2000, 1000],
                "signature": [0, 1, 0],
                "launches": 1,
                "phase": ["forward", "backward", "optimizer"],
            }
        ),
        signatures=pd.DataFrame({"signature": [0, 1], "name": ["copy", "gemm"]}),
        pairs=pd.DataFrame(
            {
                "pair": range(3),
                "core_mhz": pd.array([None, 1500, 1000], dtype="Int32"),
                "mem_mhz": pd.array([None, 800, 800], dtype="Int32"),
                "provenance": "simulated",
            }
        ),
        profile=pd.DataFrame(
            {
                "signature": [s for s, _ in cells],
                "pair": [p for _, p in cells],
                "duration_ns": [time_ns[s][p] for s, p in cells],
                "energy_mj": [energy_mj[s][p] for s, p in cells],
                "provenance": "simulated",
            }
        ),
        baseline=Baseline(GOVERNOR, 4000.0, 1.1),
    )
