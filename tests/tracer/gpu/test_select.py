"""Opening GPUs by the text a user gives, and what is loaded and said on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clockwright.data.errors import (
    DeviceError,
    InputError,
    NoDeviceError,
    NotSupportedError,
    ReadOnlyError,
)
from clockwright.data.units import ClockPair
from clockwright.tracer.gpu.nvml_library import load_binding
from clockwright.tracer.gpu.select import list_gpus, open_gpu
from tests.fake_nvml.driver import GPU_IS_LOST, FakeNvml


def _uuid_of(spec: str) -> str:
    gpu = open_gpu(spec)
    gpu.close()
    return gpu.info.uuid


def test_an_index_a_uuid_and_its_beginning_open_the_same_gpu(fake_nvml: FakeNvml) -> None:
    fake_nvml.set_count(3)
    uuid = fake_nvml.gpu(1).uuid
    for spec in ("nvml:1", f"nvml:{uuid}", f"nvml:{uuid[:7]}", "NVML:1", " nvml:1 "):
        assert _uuid_of(spec) == uuid


def test_an_index_counts_visible_gpus_and_a_uuid_all(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.set_count(3)
    first, second, third = (fake_nvml.gpu(i).uuid for i in range(3))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"2,{first}")
    assert [_uuid_of(f"nvml:{i}") for i in range(2)] == [third, first]
    assert _uuid_of(f"nvml:{second}") == second
    with pytest.raises(InputError, match=f"only 2 GPUs are visible.*{third}, {first}"):
        open_gpu("nvml:2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoDeviceError, match="hides all 3 GPUs"):
        open_gpu("nvml:0")


@pytest.mark.parametrize("spec", ["", "nvml", "nvml:", "nvml:-1", "nvml:one", "cuda:0", "sim"])
def test_text_that_names_no_gpu_is_refused_with_what_there_is(
    fake_nvml: FakeNvml, spec: str
) -> None:
    with pytest.raises(
        InputError, match="expected nvml:INDEX, nvml:GPU-UUID or sim:NAME"
    ) as raised:
        open_gpu(spec)
    assert f"nvml:{fake_nvml.gpu().uuid}" in str(raised.value)
    assert "sim:rtx3080ti" in str(raised.value)


def test_setting_is_off_unless_asked_for(fake_nvml: FakeNvml) -> None:
    gpu = open_gpu("nvml:0")
    with pytest.raises(ReadOnlyError):
        gpu.lock(ClockPair(1200, 3201))
    gpu.close()
    gpu = open_gpu("nvml:0", allow_set=True)
    gpu.lock(ClockPair(1200, 3201))
    gpu.close()
    assert fake_nvml.gpu().core_lock == (1200, 1200)  # closing sets nothing


def test_mig_is_refused_by_name_and_by_mode(fake_nvml: FakeNvml) -> None:
    with pytest.raises(NotSupportedError, match="MIG instance"):
        open_gpu("nvml:MIG-0b1c")
    fake_nvml.gpu().set(mig_mode=1)
    with pytest.raises(NotSupportedError, match="MIG is enabled"):
        open_gpu("nvml:0")


def test_beside_a_lost_gpu_the_others_are_named_by_uuid(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether CUDA counts the lost GPU is not known, so no index is trusted."""
    fake_nvml.set_count(3)
    fake_nvml.fail("nvmlDeviceGetUUID", GPU_IS_LOST, gpu=1)
    last = fake_nvml.gpu(2).uuid
    with pytest.raises(InputError, match="ambiguous here: GPU 1 cannot be reached"):
        open_gpu("nvml:2")
    assert _uuid_of(f"nvml:{last}") == last
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", last)
    assert _uuid_of("nvml:0") == last
    problems = [gpu.problem for gpu in list_gpus()[:3]]
    assert [problem is None for problem in problems] == [True, False, True]
    assert "fallen off the bus" in str(problems[1])


def test_the_list_names_every_gpu_and_what_is_wrong_with_it(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.set_count(3)
    fake_nvml.gpu(0).set(mig_mode=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    listed = list_gpus()
    real = listed[:3]
    assert [gpu.spec for gpu in real] == [f"nvml:{fake_nvml.gpu(i).uuid}" for i in range(3)]
    assert [gpu.cuda_index for gpu in real] == [1, None, 0]
    assert [gpu.problem is None for gpu in real] == [False, True, True]
    assert "MIG is enabled" in str(real[0].problem)
    assert all(gpu.spec.startswith("sim:") for gpu in listed[3:])
    assert fake_nvml.setters() == []


def test_without_a_driver_the_list_holds_the_simulated_gpus(
    fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAKE_NVML_STATE")
    listed = list_gpus()
    assert listed
    assert all(gpu.spec.startswith("sim:") for gpu in listed)
    with pytest.raises(NoDeviceError, match="no NVIDIA driver is loaded"):
        open_gpu("nvml:0")


def test_a_driver_without_gpus_says_so(fake_nvml: FakeNvml) -> None:
    fake_nvml.set_count(0)
    with pytest.raises(NoDeviceError, match="finds no GPU"):
        open_gpu("nvml:0")


def test_simulated_gpus_are_opened_with_their_seed() -> None:
    for spec, seed in (("sim:rtx3080ti", 3), ("sim:rtx3080ti?seed=3", None), ("SIM:rtx3080ti", 3)):
        gpu = open_gpu(spec, seed=seed)
        assert gpu.info.simulated
        assert gpu.info.uuid == "SIM-rtx3080ti-3"


@pytest.mark.parametrize(
    ("spec", "seed", "message"),
    [
        ("sim:nosuch", None, "rtx3080ti"),
        ("sim:rtx3080ti?seed=x", None, r"sim:rtx3080ti\?seed=3"),
        ("sim:rtx3080ti?seed", None, r"sim:rtx3080ti\?seed=3"),
        ("sim:rtx3080ti?speed=3", None, "no option speed; known: seed"),
        ("sim:rtx3080ti?seed=3", 4, "asks for seed 3, and the seed option for 4"),
    ],
)
def test_a_wrong_simulated_gpu_is_refused(spec: str, seed: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_gpu(spec, seed=seed)


SHOW_PYNVML_ERROR = """
from clockwright.data.errors import NoDeviceError
from clockwright.tracer.gpu.select import open_gpu
try:
    open_gpu("nvml:0")
except NoDeviceError as error:
    print(error)
"""


def test_the_wrong_pynvml_is_named_with_its_place_and_the_cure(tmp_path: Path) -> None:
    package = tmp_path / "pynvml"
    package.mkdir()
    (package / "__init__.py").write_text("def nvmlInit(): pass\n")
    found = subprocess.run(
        [sys.executable, "-c", SHOW_PYNVML_ERROR],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(package / "__init__.py") in found
    assert "not NVIDIA's nvidia-ml-py" in found
    assert "pip uninstall pynvml" in found
    assert found.count("\n") == 1


def test_no_binding_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoDeviceError, match="pip install nvidia-ml-py"):
        load_binding()


def test_a_driver_that_does_not_match_its_library_is_explained(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlInitWithFlags", 18)
    with pytest.raises(DeviceError, match=r"versions differ.*reboot"):
        open_gpu("nvml:0")


LOADED = """
import sys
import clockwright.tracer.gpu.select, clockwright.tracer.gpu.nvml, clockwright.tracer.gpu.energy
print([name for name in ("torch", "pynvml", "numpy", "pandas") if name in sys.modules])
"""


def test_importing_gpu_access_loads_neither_the_binding_nor_torch() -> None:
    command = [sys.executable, "-c", LOADED]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
