"""The doctor reads, answers for every GPU, and says what is missing."""

import json
import os
import subprocess
import sys

import pytest
import torch


def doctor(*arguments, **extra):
    env = {**os.environ, "CLOCKWRIGHT_KEEPER": "private", **extra}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "clockwright", "doctor", *arguments],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )


def test_it_answers_without_a_gpu(tmp_path):
    done = doctor("--json", XDG_RUNTIME_DIR=str(tmp_path), HOME=str(tmp_path))
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert any(gpu["spec"].startswith("sim:") for gpu in document["gpus"])
    real = [gpu for gpu in document["gpus"] if gpu["spec"].startswith("nvml:")]
    assert real
    assert all(gpu["problem"] or gpu["can"] for gpu in real)
    assert document["torch"]["version"] == torch.__version__
    assert document["torch"]["cuda"] == torch.version.cuda


def test_a_user_without_rights_is_told_which_right_is_missing(fake_nvml, tmp_path):
    fake_nvml.allow_setters("nobody")
    done = doctor("--json", **fake_nvml.env, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (gpu,) = [g for g in json.loads(done.stdout)["gpus"] if g["spec"].startswith("nvml:")]
    assert gpu["can"]["energy_counter"] == "yes"
    assert fake_nvml.setters() == []
    for key in ("lock_core", "power_limit"):
        assert gpu["can"][key] == "yes" or gpu["reasons"][key]


def test_read_only_is_reported(fake_nvml, tmp_path):
    env = {**fake_nvml.env, "CLOCKWRIGHT_READ_ONLY": "1", "HOME": str(tmp_path)}
    done = doctor("--json", **env)
    (gpu,) = [g for g in json.loads(done.stdout)["gpus"] if g["spec"].startswith("nvml:")]
    assert gpu["can"]["lock_core"] == "read-only"


@pytest.mark.parametrize("arguments", [(), ("--repair",)])
def test_people_get_lines(arguments, tmp_path):
    done = doctor(*arguments, XDG_RUNTIME_DIR=str(tmp_path), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "clock keeper" in done.stdout
    assert f"PyTorch {torch.__version__}" in done.stdout
    assert done.stdout.count("lock the SM clock") == done.stdout.count("nvml:GPU-")
    assert "Traceback" not in done.stdout + done.stderr
