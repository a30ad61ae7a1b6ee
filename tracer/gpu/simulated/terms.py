"""From a kernel's work to the few terms that time and energy are made of.

`KernelTerms` is all the clock model knows of a kernel: core cycles, device-memory bytes, a fixed
latency, and core energy at 1 V. `estimate_terms` derives them from flops, bytes and elements;
calibration fits them to measured tables instead.

The estimate: math at a share of peak, reduced where thread blocks do not fill the last wave of
SMs; scalar instructions by the operator's family (an error function costs more than an addition);
operand re-reads of matrix products served by L2; small tensors partly found in L2.

Left out: bank conflicts, divergence, instruction caches, tile choice of any particular library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ...work import KernelWork
from .spec import GpuSpec, RateTerms

__all__ = ["KernelTerms", "estimate_terms"]

FloatArray = npt.NDArray[np.float64]

# Scalar lane instructions per element, by operator family; the first match counts. gelu and softmax
# follow from their measured times on an H200, where the core clock bounds both; the rest are orders
# of magnitude from the usual vectorised kernels.
_INSTRUCTIONS: tuple[tuple[str, float], ...] = (
    ("gelu", 42.0),
    ("silu", 25.0),
    ("sigmoid", 20.0),
    ("tanh", 25.0),
    ("softmax", 54.0),
    ("cross_entropy", 32.0),
    ("nll_loss", 10.0),
    ("layer_norm", 24.0),
    ("rms_norm", 20.0),
    ("batch_norm", 20.0),
    ("group_norm", 24.0),
    ("dropout", 18.0),
    ("adam", 30.0),
    ("embedding", 10.0),
    ("index", 10.0),
    ("sum", 6.0),
    ("copy", 3.0),
    ("fill", 2.0),
    ("zero", 2.0),
)
_DEFAULT_INSTRUCTIONS = 5.0

_TENSOR = ("tensor_16", "tensor_tf32")
_TILE_ELEMENTS = 128 * 128
_LEAST_TENSOR_SHARE = 0.25
_ELEMENTS_PER_BLOCK = 1024
_BLOCKS_PER_SM = 8
# A 128 x 128 tile of a product reads 2 x 128 operands for every 128 x 128 multiply-adds.
_L2_BYTES_PER_FLOP = 2.0 * 2 * 128 / (2 * 128 * 128)
# What the next kernel finds in L2 of a tensor much smaller than it.
_L2_HIT = 0.6


@dataclass(frozen=True)
class KernelTerms:
    """Terms of S kernels; every array is (S,) float64.

    Attributes:
        core_cycles: core cycles of work (math, issue, L2), all SMs together.
        dram_bytes: bytes over the memory bus.
        latency_ns: part of the time that no clock changes.
        latency_cycles: core cycles of dependent latency, never hidden.
        core_mj_per_v2: core energy at 1 V.
        dram_mj: energy of the memory traffic.
        busy_share: share of SMs that hold thread blocks while it runs.
    """

    core_cycles: FloatArray
    dram_bytes: FloatArray
    latency_ns: FloatArray
    latency_cycles: FloatArray
    core_mj_per_v2: FloatArray
    dram_mj: FloatArray
    busy_share: FloatArray

    def __len__(self) -> int:
        return len(self.core_cycles)

    def take(self, rows: npt.NDArray[np.int64]) -> KernelTerms:
        """The terms of the kernels that ``rows`` (N,) names, repeated as it does."""
        return KernelTerms(*(getattr(self, entry.name)[rows] for entry in fields(self)))

    @classmethod
    def zeros(cls, count: int) -> KernelTerms:
        """Kernels without any work."""
        return cls(*(np.zeros(count) for _ in fields(cls)))


def _matched(op: str, table: tuple[tuple[str, float], ...], default: float) -> float:
    name = op.lower()
    return next((value for key, value in table if key in name), default)


def _wave_share(blocks: int, slots: int) -> float:
    """Share of SM slots that the blocks fill, last wave included."""
    return blocks / (math.ceil(blocks / slots) * slots)


def _math_reach(work: KernelWork, rates: RateTerms) -> float:
    """Share of the math unit's peak; attention keeps the tensor units less busy than a product.

    Exponentials sit between its two products, and its backward pass recomputes and accumulates.
    """
    if "attention" in work.op and work.math in _TENSOR:
        forward, backward = rates.attention_efficiency
        return backward if "backward" in work.op else forward
    return rates.efficiency[work.math]


def _one(work: KernelWork, spec: GpuSpec) -> tuple[float, float, float, float, float]:
    """Core cycles, DRAM bytes, core mJ per V^2, DRAM mJ and busy share of one kernel."""
    rates, power = spec.rates, spec.power
    # A reduction has few outputs and many inputs; four bytes stand for one.
    touched = max(work.elements, work.bytes_read // 4, 1)
    tensor = work.math in _TENSOR
    if tensor:
        blocks = math.ceil(max(work.elements, 1) / _TILE_ELEMENTS)
        # A library splits the inner dimension when tiles are few: never down to one SM.
        share = max(_wave_share(blocks, spec.sms), _LEAST_TENSOR_SHARE)
        instructions = 0.0
    else:
        blocks = math.ceil(touched / _ELEMENTS_PER_BLOCK)
        slots = spec.sms * _BLOCKS_PER_SM
        share = min(1.0, blocks / spec.sms) if blocks < slots else _wave_share(blocks, slots)
        instructions = touched * _matched(work.op, _INSTRUCTIONS, _DEFAULT_INSTRUCTIONS)

    peak = rates.flops_per_sm_cycle[work.math] * spec.sms
    math_cycles = work.flops / (peak * _math_reach(work, rates) * share)
    issue_cycles = instructions / (rates.lanes_per_sm * spec.sms * share)

    hit = _L2_HIT * max(0.0, 1.0 - work.bytes / rates.l2_bytes)
    dram_bytes = work.bytes * (1.0 - hit)
    l2_bytes = float(work.bytes)
    if tensor:
        l2_bytes = max(l2_bytes, work.flops * _L2_BYTES_PER_FLOP)
    l2_cycles = work.bytes / rates.l2_bytes_per_core_cycle

    # Counted arithmetic and issued instructions are two views of the same work: the larger holds.
    core_pj = max(work.flops * power.flop_pj[work.math], instructions * power.instruction_pj)
    core_pj += l2_bytes * power.l2_byte_pj
    return (
        max(math_cycles, issue_cycles, l2_cycles),
        dram_bytes,
        core_pj * 1e-9,
        dram_bytes * power.dram_byte_pj * 1e-9,
        max(share, min(1.0, blocks / spec.sms)),
    )


def estimate_terms(works: Sequence[KernelWork], spec: GpuSpec) -> KernelTerms:
    """Terms of each kernel from its work, for the GPU ``spec``."""
    rows = np.array([_one(work, spec) for work in works], dtype=np.float64).reshape(-1, 5)
    count = len(rows)
    return KernelTerms(
        core_cycles=rows[:, 0],
        dram_bytes=rows[:, 1],
        latency_ns=np.full(count, spec.rates.floor_ns),
        latency_cycles=np.full(count, spec.rates.floor_cycles),
        core_mj_per_v2=rows[:, 2],
        dram_mj=rows[:, 3],
        busy_share=rows[:, 4],
    )
