"""The tables of a trace folder: every column, its unit, and what unknown means."""

from __future__ import annotations

from .table import Column, Table

__all__ = [
    "LATENCY_PERCENTILES",
    "PAIRS",
    "PHASES",
    "PROFILE",
    "PROVENANCES",
    "SIGNATURES",
    "SWITCHES",
    "TIMELINE",
]

PHASES = ("forward", "backward", "optimizer", "other")

PROVENANCES = ("measured", "sensed", "fitted", "simulated", "imported", "assumed")
"""Where a number comes from.

measured: on a real GPU at a locked pair (or the governor). sensed: on a real GPU whose clock moved
by itself and was sensed. fitted: predicted by a model fitted to measured cells. simulated: by a
simulated GPU. imported: read from another tool's file. assumed: a model's response put on a
timeline that has no sweep.
"""

LATENCY_PERCENTILES = (5, 25, 50, 75, 90, 95, 99)
"""Percentiles of a switch's latency that a switch table holds."""

_PAIR_CELLS = (
    Column("core_mhz", "int32", "MHz", "requested core clock; unknown: governor", True, 1),
    Column("mem_mhz", "int32", "MHz", "requested memory clock; unknown: not varied", True, 1),
)
_SENSED = (
    Column("sensed_core_mhz", "float64", "MHz", "core clock sensed on the GPU", True, 0),
    Column("throttle_reasons", "int64", "", "NVML clocks-event reason bits seen", True, 0),
    Column("temperature_c", "float64", "C", "GPU temperature", True),
    Column("provenance", "category", "", "where the numbers come from", False, None, PROVENANCES),
)

TIMELINE = Table(
    "timeline",
    (
        Column("index", "int32", "", "position in the step, from 0", False, 0),
        Column("stream", "int32", "", "CUDA stream", False, 0),
        Column("start_ns", "int64", "ns", "start, from the step's first kernel at 0"),
        Column("duration_ns", "int64", "ns", "duration at the baseline", False, 0),
        Column("signature", "int32", "", "row of signatures", False, 0),
        Column("launches", "int32", "", "back-to-back launches this row stands for", False, 1),
        Column("op", "category", "", "operator that launched it", True),
        Column("module", "category", "", "module path", True),
        Column("phase", "category", "", "part of the step", False, None, PHASES),
        Column("layer", "int32", "", "layer number", True, 0),
        Column("launch_ns", "int64", "ns", "when the host launched it", True),
        Column("time_scale", "float64", "", "own time over the signature's; unknown: 1", True, 0),
        Column("energy_scale", "float64", "", "own energy over the signature's", True, 0),
    ),
)

SIGNATURES = Table(
    "signatures",
    (
        Column("signature", "int32", "", "number, from 0", False, 0),
        Column("name", "string", "", "kernel name"),
        Column("grid", "string", "", "blocks launched, x,y,z", True),
        Column("block", "string", "", "threads a block, x,y,z", True),
        Column("shared_bytes", "int64", "B", "shared memory a block", True, 0),
        Column("registers", "int32", "", "registers a thread", True, 0),
        Column("op", "string", "", "operator", True),
        Column("shapes", "string", "", "input shapes", True),
        Column("dtype", "string", "", "main data type", True),
        Column("math", "string", "", "arithmetic unit", True),
        Column("flops", "int64", "", "arithmetic operations", True, 0),
        Column("bytes", "int64", "B", "least bytes moved", True, 0),
    ),
)

PAIRS = Table(
    "pairs",
    (
        Column("pair", "int32", "", "number, from 0", False, 0),
        *_PAIR_CELLS,
        Column("idle_power_w", "float64", "W", "board power with no kernel running", True, 0),
        Column("step_time_ns", "float64", "ns", "whole step, measured at this pair", True, 0),
        Column("step_time_sd_ns", "float64", "ns", "standard deviation of one step", True, 0),
        Column("step_energy_mj", "float64", "mJ", "whole step, measured at this pair", True, 0),
        Column("step_energy_sd_mj", "float64", "mJ", "standard deviation of one step", True, 0),
        Column("step_n", "int32", "", "steps measured", True, 0),
        *_SENSED,
    ),
)

PROFILE = Table(
    "profile",
    (
        Column("signature", "int32", "", "row of signatures", False, 0),
        Column("pair", "int32", "", "row of pairs", False, 0),
        Column("duration_ns", "float64", "ns", "mean duration of one launch", False, 0),
        Column("duration_sd_ns", "float64", "ns", "standard deviation of the mean", True, 0),
        Column("energy_mj", "float64", "mJ", "mean energy of one launch", True, 0),
        Column("energy_sd_mj", "float64", "mJ", "standard deviation of the mean", True, 0),
        Column("n", "int32", "", "measurements behind the mean", True, 0),
        *_SENSED,
    ),
)

SWITCHES = Table(
    "switches",
    (
        Column("from_core_mhz", "int32", "MHz", "core clock left", True, 1),
        Column("from_mem_mhz", "int32", "MHz", "memory clock left", True, 1),
        Column("to_core_mhz", "int32", "MHz", "core clock reached", True, 1),
        Column("to_mem_mhz", "int32", "MHz", "memory clock reached", True, 1),
        Column(
            "call_ns_p50", "float64", "ns", "median time the request blocks its caller", True, 0
        ),
        *(
            Column(
                f"latency_ns_p{percent}",
                "float64",
                "ns",
                "request to arrival of the clock",
                percent != 50,  # the median is all that a table must have
                0,
            )
            for percent in LATENCY_PERCENTILES
        ),
        Column("stall_ns", "float64", "ns", "time in which no kernel runs", True, 0),
        Column("energy_mj", "float64", "mJ", "energy the transition itself costs", True, 0),
        Column("n", "int32", "", "transitions measured", True, 0),
        Column(
            "provenance", "category", "", "where the numbers come from", False, None, PROVENANCES
        ),
    ),
)
