"""The keeper's guardian: a second process that does nothing until the keeper is gone.

It waits at the read end of a pipe whose write end only the keeper holds; the kernel closes that
when the keeper dies, whatever killed it. Then the guardian gives back what the keeper's journals
name, and ends. It lives in a session of its own and ignores the signals that end a job politely,
so that they reach the keeper first. A keeper whose guardian dies starts another. If both are killed
at once, the next keeper's start repairs.

Left out: a keeper that is stopped (SIGSTOP) rather than dead holds its locks until it goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from ...data.errors import KeeperError
from .restore import OpenGpu, open_real, repair

__all__ = ["Guardian", "guard"]

_log = logging.getLogger("clockwright.clocks")
_READY = b"r"
_TRIES, _PAUSE_S = 8, 0.1
_MOST_DEATHS, _DEATHS_WINDOW_S = 5, 60.0


def guard(
    lifeline_fd: int,
    ready_fd: int,
    keeper_id: str,
    state: Path,
    open_gpu: OpenGpu = open_real,
) -> int:
    """The guardian's whole life. Returns its exit status: 0 if nothing is left set."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        os.write(ready_fd, _READY)
    while os.read(lifeline_fd, 4096):
        pass
    pause_s = _PAUSE_S
    for _ in range(_TRIES):
        notes = repair(state, open_gpu, keeper_id=keeper_id, wait_s=1.0)
        for note in notes:
            _log.warning("the clock keeper is gone; %s", note.text)
        if all(note.done for note in notes):
            return 0
        time.sleep(pause_s)
        pause_s *= 2
    return 1


class Guardian:
    """The keeper's side: starts the guardian, knows whether it is ready, restarts it if it dies.

    Args:
        keeper_id: the name under which this keeper writes its journals.
        state: the folder of journals.
    """

    def __init__(self, keeper_id: str, state: Path) -> None:
        self._keeper_id, self._state = keeper_id, state
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline_fd = self._ready_fd = -1
        self._ready = False
        self._deaths_s: list[float] = []

    @property
    def fd(self) -> int:
        """Readable when the guardian has become ready, and when it has died; -1 if none is."""
        return self._ready_fd

    @property
    def pid(self) -> int | None:
        """The guardian's process; None before `start`."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; it is ready some 0.1 s later."""
        lifeline_read, self._lifeline_fd = os.pipe()
        self._ready_fd, ready_write = os.pipe()
        self._ready = False
        command = [sys.executable, "-P", "-m", __package__, "guard"]
        command += ["--lifeline", str(lifeline_read), "--ready", str(ready_write)]
        command += ["--keeper", self._keeper_id, "--state", str(self._state)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(lifeline_read, ready_write),
                start_new_session=True,
            )
        except OSError as error:
            raise KeeperError(f"cannot start the keeper's guardian: {error.strerror}") from error
        finally:
            os.close(lifeline_read)
            os.close(ready_write)

    def wait_ready(self, timeout_s: float = 20.0) -> None:
        """Wait until the guardian watches.

        Raises:
            KeeperError: it does not come up; nothing may be set without it.
        """
        if self._ready:
            return
        watched = [self._ready_fd] if self._ready_fd >= 0 else []
        readable, _, _ = select.select(watched, [], [], timeout_s if watched else 0)
        if not readable or not self.notice():
            raise KeeperError(
                "the keeper's guardian does not start, and without it nothing is set; its messages "
                "are on the keeper's error output"
            )

    def notice(self) -> bool:
        """To be called when `fd` is readable: True if it became ready, False if it has died."""
        self._ready = os.read(self._ready_fd, 1) == _READY
        return self._ready

    def restart(self) -> None:
        """Start another after the guardian died.

        Raises:
            KeeperError: it dies again and again; nothing may be set any more.
        """
        self._drop()
        now_s = time.monotonic()
        self._deaths_s = [at_s for at_s in self._deaths_s if now_s - at_s < _DEATHS_WINDOW_S]
        self._deaths_s.append(now_s)
        if len(self._deaths_s) > _MOST_DEATHS:
            raise KeeperError(f"the keeper's guardian died {len(self._deaths_s)} times in a minute")
        _log.warning("the keeper's guardian died; starting another")
        self.start()

    def close(self) -> None:
        """Let the guardian go, as the last act of a keeper that gave everything back."""
        self._drop(wait_s=10.0)

    def _drop(self, wait_s: float = 1.0) -> None:
        for fd in (self._lifeline_fd, self._ready_fd):
            if fd >= 0:
                os.close(fd)
        self._lifeline_fd = self._ready_fd = -1
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
            self._process = None
