"""NvmlGpu reads: each field for itself, through NVIDIA's binding over the fake library."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clockwright.data.errors import DeviceError, NoDeviceError, NotSupportedError
from clockwright.data.units import ClockPair
from clockwright.tracer.gpu import Capability, Gpu, ThrottleReason
from clockwright.tracer.gpu.nvml import NvmlGpu
from clockwright.tracer.gpu.nvml_errors import nvml_error
from clockwright.tracer.gpu.processes import other_processes
from clockwright.tracer.gpu.rights import missing_right
from tests.fake_nvml.driver import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, FakeNvml, Moment


def _open(fake: FakeNvml, **options: bool) -> NvmlGpu:
    return NvmlGpu(fake.gpu().uuid, **options)


def test_it_is_a_gpu_and_says_who_it_is(fake_nvml: FakeNvml) -> None:
    with _open(fake_nvml) as gpu:
        assert isinstance(gpu, Gpu)
        info = gpu.info
    assert (info.name, info.uuid) == ("NVIDIA Fake 100", fake_nvml.gpu().uuid)
    assert (info.driver, info.vbios) == ("580.99.fake", "96.00.FA.KE.00")
    assert (info.power_limit_w, info.default_power_limit_w) == (700.0, 700.0)
    assert info.power_limit_range_w == (200.0, 700.0)
    assert (info.memory_bytes, info.pci_bus_id) == (80 << 30, "00000000:10:00.0")
    assert (info.index, info.simulated) == (0, False)


def test_a_reading_carries_every_field_in_its_unit(fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu().set_moments(
        [Moment(reasons=0x4, core_cap_mhz=1410, power_mw=699_500, temperature_c=61)]
    )
    with _open(fake_nvml) as gpu:
        before_ns = gpu.now_ns()
        reading = gpu.read()
        assert before_ns <= reading.at_ns <= gpu.now_ns()
    assert (reading.core_mhz, reading.mem_mhz) == (1410, 3201)
    assert (reading.power_w, reading.temperature_c) == (699.5, 61.0)
    assert reading.energy_mj is not None
    assert reading.energy_mj >= 5_000_000
    assert reading.throttle_reasons == ThrottleReason.SW_POWER_CAP


def test_energy_is_read_only_when_asked_for(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlDeviceGetTotalEnergyConsumption", GPU_IS_LOST)
    with _open(fake_nvml) as gpu:
        assert gpu.read(energy=False).energy_mj is None
        with pytest.raises(DeviceError, match="fallen off the bus"):
            gpu.read()


FIELDS = {
    "nvmlDeviceGetTotalEnergyConsumption": "energy_mj",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetClockInfo": "core_mhz",
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, 999])
@pytest.mark.parametrize("call", FIELDS)
def test_a_field_the_driver_refuses_is_none_and_the_rest_is_read(
    fake_nvml: FakeNvml, call: str, code: int
) -> None:
    fake_nvml.fail(call, code)
    with _open(fake_nvml) as gpu:
        reading = gpu.read()
    assert getattr(reading, FIELDS[call]) is None
    others = {*FIELDS.values(), "temperature_c", "throttle_reasons"} - {FIELDS[call]}
    assert all(getattr(reading, name) is not None for name in others)


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            "throttle_reasons",
        ),
        ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV", "temperature_c"),
    ],
)
def test_a_renamed_call_is_tried_under_its_other_name(
    fake_nvml: FakeNvml, first: str, second: str, field: str
) -> None:
    fake_nvml.gpu().set_moments([Moment(reasons=0x20, temperature_c=83)])
    fake_nvml.fail(first, 13)  # function not found
    with _open(fake_nvml) as gpu:
        assert getattr(gpu.read(), field) in {0x20, 83.0}
        fake_nvml.fail(second, 13)
        assert getattr(gpu.read(), field) is None


CLOCK_TABLES = {
    "unsorted, with repeats": (
        [(405, [300, 210, 300]), (9501, [210, 2100, 1410])],
        [(2100, 9501), (1410, 9501), (210, 9501), (300, 405), (210, 405)],
        0,
    ),
    "one memory row": ([(877, [1530, 135])], [(1530, 877), (135, 877)], 0),
    "second row not supported": ([(3201, [1980]), (2201, NOT_SUPPORTED)], [(1980, 3201)], 1),
    "second row empty": ([(3201, [1980]), (2201, [])], [(1980, 3201)], 1),
    "empty": ([], [], 1),
}


@pytest.mark.parametrize("case", CLOCK_TABLES)
def test_clock_tables_of_every_shape_are_read(fake_nvml: FakeNvml, case: str) -> None:
    rows, expected, notes = CLOCK_TABLES[case]
    fake_nvml.gpu().set_clocks(rows)
    with _open(fake_nvml) as gpu:
        assert gpu.pairs() == tuple(ClockPair(*pair) for pair in expected)
        assert len(gpu.notes) == notes


def test_a_table_the_driver_does_not_list_leaves_no_pairs_and_a_note(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlDeviceGetSupportedMemoryClocks", NOT_SUPPORTED)
    with _open(fake_nvml, allow_set=True) as gpu:
        assert gpu.pairs() == ()
        assert gpu.capabilities().lock_core is Capability.NOT_SUPPORTED
        with pytest.raises(NotSupportedError, match="does not list supported memory clocks"):
            gpu.lock(ClockPair(1200, None))
    assert fake_nvml.setters() == []


def test_capabilities_are_probed_without_one_setter_call(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clockwright.tracer.gpu.nvml_probe.missing_right", lambda: None)
    fake_nvml.gpu().set_clocks([(3201, [1980, 345])])
    fake_nvml.gpu().set(least_power_limit_mw=700_000)
    fake_nvml.fail("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    fake_nvml.fail("nvmlDeviceGetPowerUsage", NO_PERMISSION)
    with _open(fake_nvml) as gpu:
        can = gpu.capabilities()
    assert can.lock_core is Capability.YES
    assert can.lock_memory is Capability.NOT_SUPPORTED
    assert "only memory clock is 3201 MHz" in can.reasons["lock_memory"]
    assert can.power_limit is Capability.NOT_SUPPORTED
    assert can.energy_counter is Capability.NOT_SUPPORTED
    assert can.power_reading is Capability.NO_RIGHTS
    assert can.throttle_reasons is Capability.YES
    assert set(can.reasons) == {"lock_memory", "power_limit", "energy_counter", "power_reading"}
    assert fake_nvml.setters() == []


def test_capabilities_name_the_missing_right_and_read_only(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = "this process lacks CAP_SYS_ADMIN"
    monkeypatch.setattr("clockwright.tracer.gpu.nvml_probe.missing_right", lambda: lacking)
    with _open(fake_nvml) as gpu:
        can = gpu.capabilities()
        assert can.lock_core is can.lock_memory is can.power_limit is Capability.NO_RIGHTS
        assert lacking in can.reasons["lock_core"]
        assert "--cap-add SYS_ADMIN" in can.reasons["lock_core"]
        monkeypatch.setenv("CLOCKWRIGHT_READ_ONLY", "1")
        assert gpu.capabilities().lock_core is Capability.READ_ONLY


STATUS = "Name:\tpython\nCapPrm:\t{caps}\nCapEff:\t{caps}\n"


@pytest.mark.parametrize(
    ("caps", "uid_map", "lacks"),
    [
        ("000001ffffffffff", "0 0 4294967295", None),
        ("0000000000200000", "0 0 4294967295", None),
        ("00000000a80425fb", "0 0 4294967295", "lacks CAP_SYS_ADMIN"),  # docker's default set
        ("0000000000000000", "0 0 4294967295", "lacks CAP_SYS_ADMIN"),
        ("000001ffffffffff", "0 1000 1", "user namespace"),
    ],
)
def test_rights_are_judged_from_capabilities_and_namespace(
    tmp_path: Path, caps: str, uid_map: str, lacks: str | None
) -> None:
    (tmp_path / "status").write_text(STATUS.format(caps=caps))
    (tmp_path / "uid_map").write_text(f"         {uid_map}\n")
    found = missing_right(tmp_path)
    assert (found is None) if lacks is None else (lacks in str(found))


def test_rights_that_cannot_be_read_are_said_to_be(tmp_path: Path) -> None:
    assert "cannot be read" in str(missing_right(tmp_path / "gone"))


def test_mig_is_refused_with_a_reason_and_the_driver_closed(fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu().set(mig_mode=1)
    with pytest.raises(NotSupportedError, match=r"MIG is enabled.*one energy counter.*-mig 0"):
        _open(fake_nvml)
    assert fake_nvml.library.nvmlShutdown() == 1  # nothing left initialised


def test_a_gpu_that_knows_no_mig_is_opened(fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu().set(mig_mode=-1)
    with _open(fake_nvml) as gpu:
        assert gpu.read().core_mhz == 1980


def test_an_unknown_uuid_and_a_missing_driver_are_one_clear_line(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoDeviceError, match="nvidia-smi -L"):
        NvmlGpu("GPU-ffffffff-0000-0000-0000-000000000000")
    monkeypatch.delenv("FAKE_NVML_STATE")
    with pytest.raises(NoDeviceError, match="no NVIDIA driver is loaded") as raised:
        _open(fake_nvml)
    assert "\n" not in str(raised.value)


def test_closing_twice_sets_nothing_and_reading_afterwards_fails(fake_nvml: FakeNvml) -> None:
    gpu = _open(fake_nvml)
    gpu.close()
    gpu.close()
    assert fake_nvml.setters() == []
    with pytest.raises(DeviceError, match="not initialised"):
        gpu.read()


@pytest.mark.parametrize("code", [2, 3, 4, 6, 9, 10, 15, 18, 24, 999, 12345])
def test_every_code_becomes_one_line_that_names_it(code: int) -> None:
    class RefusalError(Exception):
        value = code

    error = nvml_error(RefusalError("words"), "doing a thing")
    assert str(error).startswith(f"doing a thing failed (NVML code {code}, words): ")
    assert "\n" not in str(error)
    assert error.exit_code == 4


def test_other_processes_are_told_apart_from_this_one(fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu().set_processes([os.getpid(), 1], mps=[os.getppid()])
    with _open(fake_nvml) as gpu:
        assert gpu.busy_processes() == tuple(sorted({1, os.getppid()}))
        fake_nvml.gpu().set_processes([])
        assert gpu.busy_processes() == ()
        fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", NOT_SUPPORTED)
        fake_nvml.fail("nvmlDeviceGetMPSComputeRunningProcesses_v3", NOT_SUPPORTED)
        assert gpu.busy_processes() is None


def test_process_ids_of_another_namespace_are_unknown_not_foreign(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    assert other_processes((7,), own=8, proc=tmp_path) == (7,)
    assert other_processes((7, 40_000), own=8, proc=tmp_path) is None
    assert other_processes((8, 40_000), own=8, proc=tmp_path) == (40_000,)
    assert other_processes((), own=8, proc=tmp_path) == ()
