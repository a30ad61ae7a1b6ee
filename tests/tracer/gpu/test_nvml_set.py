"""NvmlGpu sets: only when asked, only listed pairs, and it is known what was set and by whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data.errors import (
    DeviceError,
    FormatError,
    InputError,
    NotSupportedError,
    ReadOnlyError,
    RightsError,
)
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.gpu.nvml import NvmlGpu
from clockwright.tracer.gpu.prior_state import PriorState
from tests.fake_nvml.driver import GPU_IS_LOST, NOT_SUPPORTED, FakeNvml, Moment

CORE, MEMORY = "SetGpuLockedClocks", "SetMemoryLockedClocks"
SETTERS = {
    "lock": lambda gpu: gpu.lock(ClockPair(1200, 3201)),
    "lock governor": lambda gpu: gpu.lock(GOVERNOR),
    "release": lambda gpu: gpu.release(),
    "set_power_limit_w": lambda gpu: gpu.set_power_limit_w(500),
    "reset_power_limit": lambda gpu: gpu.reset_power_limit(),
    "restore": lambda gpu: gpu.restore(gpu.prior_state()),
}


def _open(fake: FakeNvml, *, allow_set: bool = True) -> NvmlGpu:
    return NvmlGpu(fake.gpu().uuid, allow_set=allow_set)


@pytest.mark.parametrize("setter", SETTERS)
def test_nothing_is_set_unless_asked_for(fake_nvml: FakeNvml, setter: str) -> None:
    with (
        _open(fake_nvml, allow_set=False) as gpu,
        pytest.raises(ReadOnlyError, match="needs --set-clocks"),
    ):
        SETTERS[setter](gpu)
    assert fake_nvml.setters() == []


@pytest.mark.parametrize("value", ["1", "yes", " true "])
@pytest.mark.parametrize("setter", SETTERS)
def test_read_only_forbids_every_setter_even_when_asked_for(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, setter: str, value: str
) -> None:
    with _open(fake_nvml) as gpu:
        monkeypatch.setenv("CLOCKWRIGHT_READ_ONLY", value)
        with pytest.raises(ReadOnlyError, match="CLOCKWRIGHT_READ_ONLY is set"):
            SETTERS[setter](gpu)
    assert fake_nvml.setters() == []


def test_a_pair_is_locked_memory_first_and_released(fake_nvml: FakeNvml) -> None:
    fake = fake_nvml.gpu()
    with _open(fake_nvml) as gpu:
        assert gpu.locked() is None
        gpu.lock(ClockPair(1200, 2201))
        assert (fake.core_lock, fake.mem_lock) == ((1200, 1200), (2201, 2201))
        assert gpu.locked() == ClockPair(1200, 2201)
        reading = gpu.read()
        assert (reading.core_mhz, reading.mem_mhz) == (1200, 2201)
        gpu.release()
        assert gpu.locked() is None
    assert fake.is_pristine
    log = fake_nvml.setters()
    assert [(entry.call.removeprefix("nvmlDevice"), entry.low) for entry in log] == [
        (MEMORY, 2201),
        (CORE, 1200),
        ("ResetGpuLockedClocks", 0),
        ("ResetMemoryLockedClocks", 0),
    ]
    assert {entry.pid for entry in log} == {os.getpid()}


def test_an_unnamed_clock_is_left_or_given_back(fake_nvml: FakeNvml) -> None:
    fake = fake_nvml.gpu()
    with _open(fake_nvml) as gpu:
        gpu.lock(ClockPair(1200, 2201))
        gpu.lock(ClockPair(1500, None))  # the memory clock stays
        assert (fake.core_lock, fake.mem_lock) == ((1500, 1500), (2201, 2201))
        assert gpu.locked() == ClockPair(1500, 2201)
        gpu.lock(ClockPair(None, 3201))  # the core clock goes back to the governor
        assert (fake.core_lock, fake.mem_lock) == (None, (3201, 3201))
        assert gpu.locked() == ClockPair(None, 3201)
        gpu.lock(GOVERNOR)
        assert gpu.locked() is None
    assert fake.is_pristine


def test_a_clock_already_held_is_not_set_again_until_released(fake_nvml: FakeNvml) -> None:
    with _open(fake_nvml) as gpu:
        for pair in ((1200, 2201), (1500, 2201), (1500, 3201), (1500, 3201)):
            gpu.lock(ClockPair(*pair))
        assert [entry.low for entry in fake_nvml.setters(MEMORY)] == [2201, 3201]
        assert [entry.low for entry in fake_nvml.setters(CORE)] == [1200, 1500]
        gpu.release()
        gpu.lock(ClockPair(1500, 3201))
        assert (fake_nvml.gpu().core_lock, fake_nvml.gpu().mem_lock) == ((1500,) * 2, (3201,) * 2)


def test_the_only_memory_clock_is_never_locked(fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu().set_clocks([(877, [1530, 1380, 135])])
    fake_nvml.fail("nvmlDeviceSetMemoryLockedClocks", NOT_SUPPORTED)
    fake_nvml.fail("nvmlDeviceResetMemoryLockedClocks", NOT_SUPPORTED)
    with _open(fake_nvml) as gpu:
        gpu.lock(ClockPair(1380, 877))
        assert fake_nvml.gpu().core_lock == (1380, 1380)
        assert fake_nvml.setters(MEMORY) == []
        gpu.release()
    assert fake_nvml.gpu().is_pristine


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (ClockPair(1201, 3201), "no core clock 1201 MHz at memory clock 3201.*nearest 1200"),
        (ClockPair(1200, 3200), "no memory clock 3200 MHz; it lists 3201, 2201"),
        (ClockPair(5, None), "no core clock 5 MHz; it lists 345 to 1980"),
        (ClockPair(None, 1), "no memory clock 1 MHz"),
    ],
)
def test_an_unlisted_pair_is_refused_before_the_driver(
    fake_nvml: FakeNvml, pair: ClockPair, message: str
) -> None:
    with _open(fake_nvml) as gpu, pytest.raises(InputError, match=message):
        gpu.lock(pair)
    assert fake_nvml.setters() == []


def test_a_core_clock_of_another_memory_row_is_refused(fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu().set_clocks([(9501, [2100, 210]), (405, [420, 210])])
    with _open(fake_nvml) as gpu:
        gpu.lock(ClockPair(420, 405))
        with pytest.raises(InputError, match="420 MHz at memory clock 9501"):
            gpu.lock(ClockPair(420, 9501))


@pytest.mark.parametrize("setter", ["lock", "set_power_limit_w"])
def test_missing_rights_say_which_and_how_to_get_them(fake_nvml: FakeNvml, setter: str) -> None:
    fake_nvml.allow_setters("nobody")
    with _open(fake_nvml) as gpu:
        with pytest.raises(RightsError) as raised:
            SETTERS[setter](gpu)
        assert gpu.locked() is None
    for words in ("CAP_SYS_ADMIN", "as root", "--cap-add SYS_ADMIN", "-acp UNRESTRICTED"):
        assert words in str(raised.value)
    assert fake_nvml.gpu().is_pristine
    assert len(fake_nvml.setters()) == 1  # no second attempt


def test_a_half_done_lock_gives_both_clocks_back(fake_nvml: FakeNvml) -> None:
    with _open(fake_nvml) as gpu:
        fake_nvml.fail("nvmlDeviceSetGpuLockedClocks", 999)
        with pytest.raises(DeviceError, match="locking the SM clock to 1200 MHz"):
            gpu.lock(ClockPair(1200, 2201))
        assert gpu.locked() is None
    assert fake_nvml.setters(MEMORY)[0].code == 0  # the memory clock had been locked
    assert fake_nvml.gpu().is_pristine


def test_rights_lost_between_two_locks_leave_the_record_true(fake_nvml: FakeNvml) -> None:
    with _open(fake_nvml) as gpu:
        gpu.lock(ClockPair(1200, 2201))
        fake_nvml.allow_setters("nobody")
        with pytest.raises(RightsError):
            gpu.lock(ClockPair(1500, 3201))
        assert gpu.locked() == ClockPair(1200, 2201)
        assert (fake_nvml.gpu().core_lock, fake_nvml.gpu().mem_lock) == ((1200,) * 2, (2201,) * 2)


def test_after_a_failure_that_could_not_be_undone_the_same_pair_is_set_anew(
    fake_nvml: FakeNvml,
) -> None:
    with _open(fake_nvml) as gpu:
        gpu.lock(ClockPair(1200, 2201))
        for call in (f"nvmlDevice{CORE}", "nvmlDeviceResetMemoryLockedClocks"):
            fake_nvml.fail(call, 999, times=1)
        with pytest.raises(DeviceError, match="SM clock to 1500"):
            gpu.lock(ClockPair(1500, 2201))
        assert (fake_nvml.gpu().core_lock, fake_nvml.gpu().mem_lock) == (None, (2201, 2201))
        gpu.lock(ClockPair(1200, 2201))
        assert (fake_nvml.gpu().core_lock, fake_nvml.gpu().mem_lock) == ((1200,) * 2, (2201,) * 2)
        assert len(fake_nvml.setters(MEMORY)) == 2


def test_release_reports_a_memory_clock_that_cannot_be_given_back(fake_nvml: FakeNvml) -> None:
    with _open(fake_nvml) as gpu:
        gpu.lock(ClockPair(1200, 2201))
        fake_nvml.fail("nvmlDeviceResetMemoryLockedClocks", NOT_SUPPORTED, times=1)
        with pytest.raises(NotSupportedError, match="releasing the memory clock"):
            gpu.release()
        assert gpu.locked() == ClockPair(1200, 2201)


def test_release_tries_both_clocks_and_reports_the_first_failure(fake_nvml: FakeNvml) -> None:
    with _open(fake_nvml) as gpu:
        gpu.lock(ClockPair(1200, 2201))
        fake_nvml.fail("nvmlDeviceResetGpuLockedClocks", GPU_IS_LOST, times=1)
        with pytest.raises(DeviceError, match="releasing the SM clock"):
            gpu.release()
        assert fake_nvml.gpu().mem_lock is None
        assert gpu.locked() == ClockPair(1200, 2201)  # not known to be free
        gpu.release()
        assert gpu.locked() is None
    assert fake_nvml.gpu().is_pristine


def test_the_power_limit_is_set_read_back_and_reset(fake_nvml: FakeNvml) -> None:
    fake = fake_nvml.gpu()
    with _open(fake_nvml) as gpu:
        gpu.set_power_limit_w(412.5)
        assert fake.raw.power_limit_mw == 412_500
        for wrong_w in (199.9, 700.1, float("nan")):
            with pytest.raises(InputError, match="must be 200 to 700 W"):
                gpu.set_power_limit_w(wrong_w)
        gpu.reset_power_limit()
    assert fake.is_pristine
    assert len(fake_nvml.setters("PowerManagementLimit")) == 2


def test_a_power_limit_that_does_not_stick_is_reported(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlDeviceSetPowerManagementLimit", 0)  # success, and nothing done
    with (
        _open(fake_nvml) as gpu,
        pytest.raises(DeviceError, match="returned success, but the driver reports 700 W"),
    ):
        gpu.set_power_limit_w(300)


def test_no_default_power_limit_cannot_be_reset(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlDeviceGetPowerManagementDefaultLimit", NOT_SUPPORTED)
    with _open(fake_nvml) as gpu, pytest.raises(NotSupportedError, match="no default power limit"):
        gpu.reset_power_limit()


def test_the_prior_state_is_read_and_restored(fake_nvml: FakeNvml) -> None:
    fake = fake_nvml.gpu()
    fake.set(power_limit_mw=600_000, persistence=1, app_core_mhz=1590, app_mem_mhz=3201)
    fake.set_moments([Moment(reasons=0x2)])
    with _open(fake_nvml) as gpu:
        prior = gpu.prior_state()
        assert prior == PriorState(
            fake.uuid, 600.0, 700.0, True, 1590, 3201, 1980, 3201, clocks_user_defined=True
        )
        gpu.lock(ClockPair(1200, 2201))
        gpu.set_power_limit_w(300)
    with _open(fake_nvml) as another:  # a later process, from the journal's text
        another.restore(PriorState.from_json(json.loads(json.dumps(prior.to_json()))))
    assert (fake.core_lock, fake.mem_lock) == (None, None)
    assert fake.raw.power_limit_mw == 600_000


def test_restoring_goes_on_after_a_failure_and_reports_it(fake_nvml: FakeNvml) -> None:
    with _open(fake_nvml) as gpu:
        prior = gpu.prior_state()
        gpu.lock(ClockPair(1200, 2201))
        gpu.set_power_limit_w(300)
        fake_nvml.fail("nvmlDeviceResetGpuLockedClocks", 999, times=1)
        with pytest.raises(DeviceError, match="releasing the SM clock"):
            gpu.restore(prior)
        assert fake_nvml.gpu().mem_lock is None
        assert fake_nvml.gpu().raw.power_limit_mw == 700_000
        gpu.set_power_limit_w(300)
        fake_nvml.fail("nvmlDeviceSetPowerManagementLimit", 999, times=1)
        with pytest.raises(DeviceError, match="setting the power limit to 700 W"):
            gpu.restore(prior)
        gpu.restore(prior)
        count = len(fake_nvml.setters("PowerManagementLimit"))
        gpu.restore(prior)  # a limit that is right already is not set again
        assert len(fake_nvml.setters("PowerManagementLimit")) == count
    assert fake_nvml.gpu().is_pristine


def test_another_gpus_state_is_not_restored(fake_nvml: FakeNvml) -> None:
    with _open(fake_nvml) as gpu, pytest.raises(InputError, match="that of GPU-other"):
        gpu.restore(PriorState("GPU-other"))
    assert fake_nvml.setters() == []


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {},
        {"uuid": 3},
        {"uuid": "GPU-1", "surprise": 1},
        {"uuid": "GPU-1", "power_limit_w": "700"},
        {"uuid": "GPU-1", "power_limit_w": True},
        {"uuid": "GPU-1", "persistence_mode": 1},
    ],
)
def test_a_damaged_prior_state_is_refused(values: object) -> None:
    with pytest.raises(FormatError, match="prior GPU state"):
        PriorState.from_json(values)


maybe_mhz = st.none() | st.integers(1, 10_000)


@given(
    st.builds(
        PriorState,
        st.text(min_size=1),
        st.none() | st.floats(1, 2000),
        st.none() | st.floats(1, 2000),
        st.none() | st.booleans(),
        maybe_mhz,
        maybe_mhz,
        maybe_mhz,
        maybe_mhz,
        st.none() | st.booleans(),
    )
)
def test_a_prior_state_survives_json(prior: PriorState) -> None:
    assert PriorState.from_json(json.loads(json.dumps(prior.to_json()))) == prior


KEEPER = """
import sys
from clockwright.data.units import parse_pair
from clockwright.tracer.gpu.nvml import NvmlGpu
NvmlGpu(sys.argv[1], allow_set=True).lock(parse_pair(sys.argv[2]))
"""


def test_another_process_with_rights_sets_what_this_one_may_not(fake_nvml: FakeNvml) -> None:
    fake_nvml.allow_setters("root")
    fake = fake_nvml.gpu()
    with _open(fake_nvml) as gpu:
        with pytest.raises(RightsError):
            gpu.lock(ClockPair(1200, 2201))
        environment = os.environ | fake_nvml.env | {"FAKE_NVML_ROOT": "1"}
        command = [sys.executable, "-c", KEEPER, fake.uuid, "1500/2201"]
        subprocess.run(command, check=True, env=environment)
        reading = gpu.read()
        assert (reading.core_mhz, reading.mem_mhz) == (1500, 2201)  # it ended without releasing
    assert os.getpid() not in {entry.pid for entry in fake_nvml.setters() if entry.code == 0}
