"""``clockwright doctor``: what can be measured and set here, and what an operator must grant."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..data.errors import ClockwrightError
from ._output import emit, json_option, say

if TYPE_CHECKING:
    from ..tracer.clocks import KeeperSurvey

__all__ = ["command"]

_QUESTIONS = {
    "lock_core": "lock the SM clock",
    "lock_memory": "lock the memory clock",
    "power_limit": "set the power cap",
    "energy_counter": "read the energy counter",
    "power_reading": "read power",
    "throttle_reasons": "read throttle reasons",
}


@click.command("doctor")
@click.option("--repair", is_flag=True, help="Have clocks given back that a dead keeper left set.")
@json_option
def command(repair: bool, as_json: bool) -> int:
    """Look at GPUs, rights and the clock keeper, by reading only.

    Exit status 0 if nothing needs mending, 4 if a dead keeper left a GPU set.
    """
    from ..tracer.clocks import run_repair, survey

    repaired = [note.text for note in run_repair()] if repair else []
    found = survey()
    left = [leftover.text for leftover in found.leftovers if not leftover.live]
    document: dict[str, Any] = {
        "gpus": _gpus(),
        "torch": _torch(),
        "keeper": _keeper(found),
        "left_set": left,
        "repaired": repaired,
    }
    if as_json:
        emit(document)
    else:
        _print(document)
    return 4 if left else 0


def _gpus() -> list[dict[str, Any]]:
    """Every GPU listed, with what this user can do on it."""
    from ..tracer.gpu import list_gpus

    try:
        listed = list_gpus()
    except ClockwrightError as error:
        return [{"spec": "nvml", "name": None, "problem": str(error), "can": {}, "reasons": {}}]
    rows = [_gpu(entry.spec, entry.name, entry.problem) for entry in listed]
    if not any(row["spec"].startswith("nvml:") for row in rows):
        # Nothing real is listed; opening the first says why.
        rows.insert(0, _gpu("nvml:0", None, None))
    return rows


def _gpu(spec: str, name: str | None, problem: str | None) -> dict[str, Any]:
    from ..tracer.gpu import open_gpu

    row: dict[str, Any] = {"spec": spec, "name": name, "problem": problem, "can": {}, "reasons": {}}
    if problem is not None:
        return row
    try:
        gpu = open_gpu(spec)
        try:
            answers = gpu.capabilities()
            pairs = gpu.pairs()
        finally:
            gpu.close()
    except ClockwrightError as error:
        return row | {"problem": str(error)}
    can = {key: getattr(answers, key).value for key in _QUESTIONS}
    return row | {"can": can, "reasons": dict(answers.reasons), "clock_pairs": len(pairs)}


def _torch() -> dict[str, Any]:
    """Whether PyTorch can run kernels here; tracing and replaying on a real GPU need it."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"version": None, "cuda": None, "sees_gpu": False, "problem": str(error)}
    version = str(torch.__version__)
    return {
        "version": version,
        "cuda": torch.version.cuda,
        "sees_gpu": torch.cuda.is_available(),
        "problem": None,
    }


def _keeper(found: KeeperSurvey) -> dict[str, Any]:
    return {
        "socket": None if found.socket is None else str(found.socket),
        "answer": found.answer,
        "problem": found.problem,
        "journals": str(found.state),
        "leftovers": [asdict(leftover) for leftover in found.leftovers],
    }


def _print(document: dict[str, Any]) -> None:
    for gpu in document["gpus"]:
        if gpu["spec"].startswith("sim:") and not gpu["problem"]:
            # What a simulated GPU allows is nobody's right to grant.
            say(f"{gpu['spec']}: simulated, {gpu['clock_pairs']} clock pairs")
            continue
        say(f"{gpu['spec']}: {gpu['name'] or 'unknown'}")
        if gpu["problem"]:
            say(f"  cannot be used: {gpu['problem']}")
            continue
        say(f"  clock pairs: {gpu['clock_pairs']}")
        for key, answer in gpu["can"].items():
            why = gpu["reasons"].get(key)
            say(f"  {_QUESTIONS[key]}: {answer}" + (f" ({why})" if why else ""))
    say(_torch_line(document["torch"]))
    keeper = document["keeper"]
    if keeper["socket"] is None:
        say("clock keeper: none runs for this machine; a private one starts when clocks are set")
    elif keeper["problem"]:
        say(f"clock keeper at {keeper['socket']}: {keeper['problem']}")
    else:
        say(f"clock keeper at {keeper['socket']}: answers")
    for text in document["repaired"]:
        say(f"repaired: {text}")
    for text in document["left_set"]:
        say(f"needs mending: {text} (clockwright doctor --repair)")


def _torch_line(found: dict[str, Any]) -> str:
    if found["problem"]:
        return f"PyTorch: cannot be imported ({found['problem']})"
    if found["cuda"] is None:
        return f"PyTorch {found['version']}: no CUDA build; a real GPU needs one"
    sees = "sees a GPU" if found["sees_gpu"] else "sees no GPU"
    return f"PyTorch {found['version']}: CUDA {found['cuda']}, {sees}"
