"""A raw folder as `Session` writes it, of a step whose costs are known."""

from __future__ import annotations

import json

from tests.tracer.importers.kineto_files import kernel, launch, step, write

NAMES = ("gemm", "copy", "gemm")
TIME_US = {"gemm": 300.0, "copy": 100.0}
SLOPE = {"gemm": -1.0, "copy": 0.0}
POWER_W = {"gemm": 600.0, "copy": 400.0}
EXPONENT = {"gemm": 1.0, "copy": 0.5}
CLOCK_MHZ, GAP_US, WAIT_W = 1700.0, 20.0, 120.0
LONG_CYCLES, SHORT_CYCLES = 24_000, 6_000


def took_us(name, clock_mhz):
    return TIME_US[name] * (clock_mhz / CLOCK_MHZ) ** SLOPE[name]


def step_us(clock_mhz):
    return sum(took_us(name, clock_mhz) + GAP_US for name in NAMES)


def energy_mj(name, clock_mhz=CLOCK_MHZ):
    scale = (clock_mhz / CLOCK_MHZ) ** EXPONENT[name]
    return POWER_W[name] * TIME_US[name] * 1e-3 * scale


STEP_MJ = sum(energy_mj(name) for name in NAMES) + WAIT_W * len(NAMES) * GAP_US * 1e-3


def profile(path, clocks, *, probes=False):
    """Marked steps, one at each clock."""
    events, at, key = [], 1000.0, 0
    for number, clock in enumerate(clocks):
        begin = at
        for place, name in enumerate(NAMES):
            if probes:
                for cycles in (SHORT_CYCLES, LONG_CYCLES):
                    key += 1
                    events.append(launch(key, f"{begin + key % 7:.3f}"))
                    length = cycles / clock
                    events.append(kernel("spin_kernel", f"{at:.3f}", f"{length:.3f}",
                                         correlation=key))  # fmt: skip
                    at += length
            key += 1
            events.append(launch(key, f"{begin + 10 + place:.3f}"))
            length = took_us(name, clock)
            events.append(kernel(name, f"{at:.3f}", f"{length:.3f}", correlation=key))
            at += length + GAP_US
        events.append(step(number, f"{begin:.3f}", f"{at - begin:.3f}"))
        at += 50.0
    return write(path, *events)


def window(power_w, core_mhz):
    return {
        "power_w": power_w, "power_error_w": 0.5, "core_mhz": core_mhz, "mem_mhz": 3201,
        "temperature_c": 55.0, "throttle_reasons": 4,
    }  # fmt: skip


def plain(time_ns, energy):
    made = {
        "time_ns": time_ns, "time_sd_ns": 1e3, "steps": 70, "energy_mj": energy,
        "sensed_mhz": None, "window": window(energy / time_ns * 1e6, CLOCK_MHZ),
    }  # fmt: skip
    return {"plain": made, "probed": made}


def mixes():
    made = []
    for share in range(24):
        core = 1500.0 + 20 * share
        gemm, copy = 100 + 13 * (share % 5), 40 * (share % 4)
        cycles = 10**7 * (share % 3)
        waited_ns = cycles / core * 1e3
        busy = gemm * took_us("gemm", core) * 1e3 + copy * took_us("copy", core) * 1e3
        energy = gemm * energy_mj("gemm", core) + copy * energy_mj("copy", core)
        energy += WAIT_W * (core / CLOCK_MHZ) ** 0.5 * waited_ns * 1e-6
        time_ns = busy + waited_ns
        calls = {"0": gemm} | ({"1": copy} if copy else {})
        made.append(
            {"calls": calls, "wait_cycles": cycles, "time_ns": time_ns, "time_sd_ns": 10.0,
             "sensed_mhz": core, "plan": {"kind": "mix", "loops": calls},
             "window": window(energy / time_ns * 1e6, core)}
        )  # fmt: skip
    return made


def raw_folder(folder, keys, *, ambient=True, longer=1.0, **changes):
    """Write the folder.

    Args:
        folder: an empty one.
        keys: identity of each kernel's launch, by name.
        ambient: with profiles at other clocks.
        longer: the plain step's time over the profiled one's.
        changes: entries of the record to replace.
    """
    profile(folder / "timeline.json", [CLOCK_MHZ] * 5)
    record = {
        "step": plain(step_us(CLOCK_MHZ) * 1e3 * longer, STEP_MJ),
        "again": plain(step_us(CLOCK_MHZ) * 1e3 * longer, STEP_MJ),
        "loops": [
            {
                "name": name,
                "count": count,
                "kernels": [[keys[name], TIME_US[name] * 1e3]],
                "gap_ns": 0.0,
            }
            for name, count in (("gemm", 2), ("copy", 1))
        ],
        "mixes": mixes(),
        "ambient": [],
        "parts_s": {"step": 7.0},
        "profiled_step_ns": step_us(CLOCK_MHZ) * 1e3,
        "core_clocks_mhz": list(range(345, 1981, 15)),
        "partial": None,
        "torch": "2.11.0",
    }
    if ambient:
        for number, clock in enumerate((1500.0, 1600.0, 1700.0, 1850.0, 1950.0)):
            name = f"ambient-{number}.json"
            profile(folder / name, [clock, clock + 5, clock + 10], probes=True)
            record["ambient"].append({"name": f"load {number}", "file": name})
    (folder / "raw.json").write_text(json.dumps(record | changes, default=int))
    return folder
