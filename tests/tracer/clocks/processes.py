"""Keepers and trainers as processes of their own, to be killed; and what to wait for afterwards.

Run as a program this file is a trainer: it takes a lease and switches between two pairs until it
is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FAST = ["--max-switches", "100000", "--poll", "100us"]


def wait_until(true: Callable[[], bool], what: str, timeout_s: float = 10.0) -> float:
    """Seconds until ``true()``; fails the test if it does not come true."""
    start_s = time.monotonic()
    while not true():
        if time.monotonic() - start_s > timeout_s:
            raise AssertionError(f"not in {timeout_s} s: {what}")
        time.sleep(0.001)
    return time.monotonic() - start_s


def wait_for_error(call: Callable[[], object], kind: type[Exception]) -> str:
    """Call until it raises ``kind``, as a trainer does that checks each step; returns the text."""
    said: list[str] = []

    def raised() -> bool:
        try:
            call()
        except kind as error:
            said.append(str(error))
        return bool(said)

    wait_until(raised, f"{kind.__name__} is raised")
    return said[0]


def is_alive(pid: int) -> bool:
    """True for a process that runs; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(*pids: int, number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Processes:
    """What a test started."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "keeper.sock"
        self._started: list[subprocess.Popen[str]] = []
        self._others: list[int] = []

    def _start(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, text=True, start_new_session=True, **options)
        self._started.append(process)
        return process

    def keeper(
        self, *options: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A keeper that listens at `socket`, ready when this returns."""
        command = [sys.executable, "-m", "clockwright.tracer.clocks", "serve"]
        command += ["--socket", str(self.socket), *FAST, *options]
        process = self._start(command, env=environment)
        wait_until(lambda: self.socket.exists() or process.poll() is not None, "keeper listens")
        assert process.poll() is None, "the keeper ended at once"
        return process

    def repair(self) -> str:
        """A keeper program that only repairs; returns what it says."""
        command = [sys.executable, "-m", "clockwright.tracer.clocks", "repair"]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        return f"{done.stdout}{done.stderr}"

    def trainer(self, how: str, *, private: bool, **fields: Any) -> Trainer:
        """A trainer that locks (``direct``) or writes a page (``page``); it has said hello."""
        settings = {"how": how, "socket": "private" if private else str(self.socket), **fields}
        command = [sys.executable, "-m", "tests.tracer.clocks.processes", json.dumps(settings)]
        process = self._start(command, stdout=subprocess.PIPE, cwd=ROOT)
        trainer = Trainer(process)
        self._others += [trainer.keeper_pid, trainer.guardian_pid]
        return trainer

    def kill_all(self) -> None:
        """Kill what still runs, children too, and reap it."""
        for pid in self._others:
            kill(pid)
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class Trainer:
    """A trainer process and the keeper it is connected to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the trainer ended before it was connected"
        hello = json.loads(line)
        self.keeper_pid: int = hello["keeper_pid"]
        self.guardian_pid: int = hello["guardian_pid"]

    def wait_for(self, word: str) -> None:
        """Wait until the trainer says it is ``leased``, or ``switching``."""
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline().strip()) != word:
            assert line, f"the trainer ended before it was {word}"


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def _train(settings: dict[str, Any]) -> None:
    from clockwright.data.units import parse_pair
    from clockwright.tracer.clocks import KeeperClient, TriggerPage, numbered

    pairs = [parse_pair("1410/3201"), parse_pair("1200/2201")]
    with KeeperClient.start(socket=settings["socket"], options=FAST) as client:
        _say(json.dumps({"keeper_pid": client.keeper_pid, "guardian_pid": client.guardian_pid}))
        heartbeat_s = settings.get("heartbeat_s")
        client.acquire(settings["uuid"], numbered(pairs), heartbeat_s=heartbeat_s)
        _say("leased")
        page = TriggerPage.create()
        if settings["how"] == "page":
            client.arm(page)
        if settings.get("power_limit_w"):
            client.set_power_limit_w(settings["power_limit_w"])
        if settings.get("forks") and os.fork() == 0:
            time.sleep(30)  # as a data loader's worker, with a copy of every file descriptor
            os._exit(0)
        turn = 0
        while turn < settings.get("turns", 10**9):
            if settings["how"] == "page":
                page.sequence = 1 + turn % 2
                client.check()
                time.sleep(0.001)
            elif settings["how"] == "direct":
                client.lock(pairs[turn % 2])
            if turn == 1:
                _say("switching")
            turn += 1
            if settings["how"] == "hold":
                client.lock(pairs[0])
                time.sleep(0.05)
        if settings.get("raises"):
            raise SystemError("the trainer's own failure")


if __name__ == "__main__":
    _train(json.loads(sys.argv[1]))
