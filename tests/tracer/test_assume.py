"""A timeline without a sweep can be planned on, with assumed responses that say so."""

from dataclasses import replace

import numpy as np
import pytest

from clockwright.data import tables
from clockwright.data.errors import InputError
from clockwright.data.trace import Baseline
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.assume import assume_responses
from clockwright.tracer.gpu.simulated import open_simulated


@pytest.fixture
def timeline_only(small_trace):
    names = ["ampere_bf16_s16816gemm_128x64", "vectorized_elementwise_kernel"]
    return replace(
        small_trace,
        gpu={"name": "NVIDIA Something", "simulated": False},
        provenance="imported",
        signatures=small_trace.signatures.assign(name=names),
        pairs=tables.PAIRS.frame({"pair": [0], "provenance": ["imported"]}),
        profile=tables.PROFILE.frame(
            {"signature": [], "pair": [], "duration_ns": [], "provenance": []}
        ),
        baseline=Baseline(GOVERNOR, 4000.0, None),
    )


def test_recorded_durations_stay_and_everything_else_is_labelled_assumed(timeline_only):
    trace = assume_responses(timeline_only, open_simulated("rtx3080ti"))
    assert trace.provenance == "assumed"
    assert trace.simulated
    assert trace.clock_pairs()[0] == GOVERNOR
    assert len(trace.pairs) > 50
    np.testing.assert_allclose(trace.grid("duration_ns")[:, 0], [1000.0, 2000.0])
    assert set(trace.profile["provenance"]) == {"assumed"}
    assert trace.fingerprint == timeline_only.checked().fingerprint


def test_a_matrix_kernel_follows_the_core_clock_and_a_pointwise_one_the_memory_clock(
    timeline_only,
):
    trace = assume_responses(timeline_only, open_simulated("rtx3080ti"))
    pairs = trace.clock_pairs()
    top_mem = max(pair.mem_mhz or 0 for pair in pairs)
    cores = sorted(p.core_mhz for p in pairs if p.mem_mhz == top_mem)
    mems = sorted({p.mem_mhz for p in pairs if p.mem_mhz and p.core_mhz == cores[-1]})
    gemm, pointwise = trace.grid("duration_ns")

    def at(values, core, mem):
        return values[pairs.index((core, mem))]

    half = min(cores, key=lambda core: abs(core - cores[-1] / 2))
    assert at(gemm, half, top_mem) > 1.3 * gemm[0]
    assert at(pointwise, half, top_mem) < 1.2 * pointwise[0]
    assert at(pointwise, cores[-1], mems[0]) > 2 * pointwise[0]


def test_a_measured_step_energy_is_what_the_parts_add_up_to(timeline_only):
    measured = replace(timeline_only, baseline=Baseline(GOVERNOR, 4000.0, 2.5))
    trace = assume_responses(measured, open_simulated("h200"))
    energy = trace.grid("energy_mj")[:, 0]
    assert energy[0] * 2 + energy[1] == pytest.approx(2.5)  # no gaps in this step


def test_communication_follows_no_clock(timeline_only):
    names = timeline_only.signatures.assign(name=["ncclDevKernel_AllReduce", "copy"])
    trace = assume_responses(replace(timeline_only, signatures=names), open_simulated("h200"))
    assert np.ptp(trace.grid("duration_ns")[0]) == 0


def test_a_sweep_is_not_overwritten_by_assumptions(small_trace):
    with pytest.raises(InputError, match="already has a sweep"):
        assume_responses(small_trace, open_simulated("h200"))


def test_durations_recorded_at_a_locked_pair_stay_at_that_pair(timeline_only):
    gpu = open_simulated("rtx3080ti")
    low, high = ClockPair(1200, 9501), ClockPair(1800, 9501)
    assert {low, high} <= set(gpu.pairs())
    trace = assume_responses(replace(timeline_only, baseline=Baseline(low, 4000.0, None)), gpu)
    assert trace.baseline.pair == low
    pairs = trace.clock_pairs()
    assert pairs[0] == low
    assert pairs.count(GOVERNOR) == 1
    gemm = trace.grid("duration_ns")[0]
    assert gemm[0] == pytest.approx(1000.0)
    assert gemm[pairs.index(GOVERNOR)] < 0.9 * gemm[0], "the matrix kernel follows the core clock"


def test_a_recorded_pair_that_the_assumed_gpu_lacks_is_refused(timeline_only):
    odd = replace(timeline_only, baseline=Baseline(ClockPair(1410, 1215), 4000.0, None))
    with pytest.raises(InputError, match="recorded at 1410/1215"):
        assume_responses(odd, open_simulated("h200"))


def test_a_timeline_of_another_product_is_told(timeline_only):
    trace = assume_responses(timeline_only, open_simulated("v100"))
    assert trace.gpu["name"] == "Tesla V100-SXM2-32GB"
    assert trace.gpu["recorded_on"] == "NVIDIA Something"
    assert any("recorded on NVIDIA Something" in note for note in trace.notes)
    own = replace(timeline_only, gpu={"name": "NVIDIA H200", "simulated": False})
    notes = assume_responses(own, open_simulated("h200")).notes
    assert not any("recorded on" in note for note in notes)


def test_a_memory_clock_that_was_not_varied_is_the_gpus_own(timeline_only):
    fixed = replace(timeline_only, baseline=Baseline(ClockPair(1380, None), 4000.0, None))
    trace = assume_responses(fixed, open_simulated("v100"))
    assert trace.baseline.pair == ClockPair(1380, 877)
    assert trace.clock_pairs().count(ClockPair(1380, 877)) == 1
    assert trace.gpu["recorded_at"] == "1380/fixed"
