"""Instruments for tests: the step's cost follows from the clocks that the driver reports.

`ScriptedInstrument` reads whatever GPU it is given (the fake NVML under the real binding, or a
simulated one) and computes what three kernels cost at the clocks in force. It never sets a clock,
so whatever changes between its measurements was set by the keeper.

Run as a program this file is a tracer on the fake driver: it sweeps until it is killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from clockwright.data import tables
from clockwright.data.trace import Baseline, Trace

KERNELS = ("gemm", "copy", "norm")
COUNTS = (3, 2, 2)
CORE_MHZ, MEM_MHZ = 1980, 3201
WORKLOAD = {"name": "three kernels", "options": {"batch": 4}, "fingerprint": "f" * 64}


def cost(core_mhz, mem_mhz):
    """(time ns, energy mJ) of the three kernels: arithmetic, memory, and both."""
    core, mem = CORE_MHZ / core_mhz, MEM_MHZ / mem_mhz
    time_ns = np.array([1e5 * core, 2e5 * mem, 1e5 * (0.6 * core + 0.4 * mem)])
    watts = np.array([80 + 200 / core**2, 100 + 60 / mem + 40 / core, 90 + 50 / mem + 90 / core])
    return time_ns, time_ns * watts * 1e-6


class ScriptedInstrument:
    """Implements `clockwright.tracer.recording.instrument.Instrument`."""

    def __init__(
        self,
        gpu,
        *,
        workload=WORKLOAD,
        before: Callable[[int], None] = lambda _: None,
        name_of: Callable[[int, int, str], str] = lambda core, mem, name: name,
        sensed_mhz: Callable[[int], float] = float,
        kernels=KERNELS,
    ):
        self._gpu, self._workload = gpu, workload
        self._before, self._name_of, self._sensed_mhz = before, name_of, sensed_mhz
        self._kernels = kernels
        self.clocks: list[tuple[int, int]] = []

    @property
    def gpu(self):
        return self._gpu

    @property
    def workload(self):
        return self._workload

    def measure(self, folder: Path, *, sensed: bool = False) -> Trace:
        (folder / "raw.json").write_text("{}")
        self._before(len(self.clocks))
        reading = self._gpu.read(energy=False)
        self.clocks.append((reading.core_mhz, reading.mem_mhz))
        names = [self._name_of(reading.core_mhz, reading.mem_mhz, name) for name in self._kernels]
        order = [s for s, n in enumerate(COUNTS) for _ in range(n)]
        time_ns, energy_mj = cost(reading.core_mhz, reading.mem_mhz)
        same = {
            "sensed_core_mhz": self._sensed_mhz(reading.core_mhz),
            "throttle_reasons": reading.throttle_reasons,
            "temperature_c": reading.temperature_c,
            "provenance": "measured",
        }
        info = self._gpu.info
        return Trace(
            gpu={"name": info.name, "uuid": info.uuid, "driver": info.driver, "simulated": False},
            workload={"name": self._workload["name"], "options": self._workload["options"]},
            provenance="measured",
            baseline=Baseline(time_ns=float(time_ns @ COUNTS), energy_mj=float(energy_mj @ COUNTS)),
            timeline=pd.DataFrame(
                {
                    "index": range(len(order)),
                    "stream": 7,
                    "start_ns": [1_000_000 * i for i in range(len(order))],
                    "duration_ns": [round(time_ns[s]) for s in order],
                    "signature": order,
                    "launches": 1,
                    "phase": "forward",
                }
            ),
            signatures=pd.DataFrame({"signature": range(len(names)), "name": names}),
            pairs=tables.PAIRS.frame(
                pd.DataFrame(
                    {
                        "pair": [0],
                        "step_time_ns": float(time_ns @ COUNTS),
                        "step_time_sd_ns": 100.0,
                        "step_energy_mj": float(energy_mj @ COUNTS),
                        "step_energy_sd_mj": 0.1,
                        "step_n": 10,
                        "idle_power_w": 90.0,
                        **same,
                    }
                )
            ),
            profile=pd.DataFrame(
                {
                    "signature": range(len(names)),
                    "pair": 0,
                    "duration_ns": time_ns,
                    "duration_sd_ns": time_ns * 1e-3,
                    "energy_mj": energy_mj,
                    "energy_sd_mj": energy_mj * 1e-3,
                    "n": 10,
                    **same,
                }
            ),
        ).checked()


def _sweep_until_killed(folder: str) -> None:
    from clockwright.tracer.gpu.select import open_gpu
    from clockwright.tracer.recording.locked_sweep import LockedSweep

    def before(count: int) -> None:
        sys.stdout.write(json.dumps({"measuring": count}) + "\n")
        sys.stdout.flush()
        if count == 2:
            sys.stdin.readline()  # killed here, while a pair is locked

    LockedSweep(ScriptedInstrument(open_gpu("nvml:0"), before=before), Path(folder)).run()


if __name__ == "__main__":
    _sweep_until_killed(sys.argv[1])
