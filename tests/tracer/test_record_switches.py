"""Which transitions are measured, and that real clocks are set only when the user allows it."""

import os

import pytest

from clockwright.data.errors import InputError, ReadOnlyError
from clockwright.data.units import ClockPair
from clockwright.tracer.gpu.simulated import open_simulated
from clockwright.tracer.record_switches import few_pairs, record_switches


def test_few_pairs_span_both_axes():
    pairs = few_pairs(open_simulated("rtx3080ti").pairs())
    assert len(pairs) == 6
    assert len({pair.core_mhz for pair in pairs}) == 3
    assert len({pair.mem_mhz for pair in pairs}) == 2
    assert 405 not in {pair.mem_mhz for pair in pairs}  # holds at one core clock only


def test_one_memory_clock_gives_core_transitions_alone():
    assert {pair.mem_mhz for pair in few_pairs(open_simulated("v100").pairs())} == {877}


def test_a_gpu_with_one_pair_has_no_switch_to_measure():
    with pytest.raises(InputError, match="at least two"):
        few_pairs([ClockPair(1000, 800)])


def test_every_transition_is_measured_and_the_clocks_given_back():
    gpu = open_simulated("v100")
    table = record_switches(
        gpu, pairs=[ClockPair(1380, 877), ClockPair(900, 877), ClockPair(600, 877)], repeats=2
    )
    assert len(table) == 6
    assert gpu.locked() is None


def test_real_clocks_are_not_set_unasked(fake_nvml):
    from clockwright.tracer.gpu.nvml import NvmlGpu

    with NvmlGpu(fake_nvml.gpu(0).uuid) as gpu, pytest.raises(ReadOnlyError, match="--set-clocks"):
        record_switches(gpu)
    assert fake_nvml.setters() == []


def test_on_a_real_driver_the_keeper_sets_and_gives_back(fake_nvml, tmp_path, monkeypatch):
    from clockwright.tracer.gpu.nvml import NvmlGpu

    for name, value in {**fake_nvml.env, "CLOCKWRIGHT_KEEPER": "private"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fake_nvml.allow_setters("everyone")
    card = fake_nvml.gpu(0)
    with NvmlGpu(card.uuid) as gpu:
        mem = gpu.pairs()[0].mem_mhz
        cores = sorted({pair.core_mhz for pair in gpu.pairs() if pair.mem_mhz == mem})
        pairs = [ClockPair(cores[-1], mem), ClockPair(cores[0], mem)]
        table = record_switches(gpu, pairs=pairs, repeats=2, set_clocks=True)
    assert len(table) == 2
    assert set(table["provenance"]) == {"measured"}
    assert card.is_pristine
    assert os.getpid() not in {call.pid for call in fake_nvml.setters()}
