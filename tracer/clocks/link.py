"""The wire to a keeper: how it is reached or started, and one request at a time over it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...data.errors import KeeperError
from . import protocol

__all__ = ["DEFAULT_SOCKET", "PRIVATE", "SOCKET_VARIABLE", "KeeperLink"]

SOCKET_VARIABLE = "CLOCKWRIGHT_KEEPER"
DEFAULT_SOCKET = Path("/run/clockwright/keeper.sock")
PRIVATE = "private"
_REPLY_TIMEOUT_S = 60.0


class KeeperLink:
    """A connected socket and, for a private keeper, the process at its other end.

    Args:
        connection: the socket, connected.
        process: the private keeper, which ends when the socket closes.
    """

    def __init__(
        self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._connection, self._process = connection, process
        self._reader = protocol.LineReader()
        self._lock = threading.Lock()
        self._last_id = 0
        self._pid = os.getpid()
        connection.settimeout(_REPLY_TIMEOUT_S)

    @classmethod
    def to_socket(cls, path: Path) -> KeeperLink:
        """Connect to the operator's keeper.

        Raises:
            KeeperError: none can be reached there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            hint = f"start one with `python -m {__package__} serve`, or unset {SOCKET_VARIABLE}"
            if isinstance(error, PermissionError):
                hint = "ask an operator to add you to the keeper's group"
            reason = error.strerror or str(error)
            raise KeeperError(
                f"no clock keeper can be reached at {path}: {reason}; {hint}"
            ) from error
        return cls(connection)

    @classmethod
    def to_private(cls, options: Iterable[str]) -> KeeperLink:
        """Start a keeper for this process alone.

        Raises:
            KeeperError: it cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # -P: a file in the user's folder must not stand in for a module of the keeper's.
        command = [sys.executable, "-P", "-m", str(__package__), "serve"]
        command += ["--connection", str(theirs.fileno()), *options]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise KeeperError(f"cannot start a clock keeper: {error.strerror}") from error
        finally:
            theirs.close()
        return cls(ours, process)

    @property
    def is_forked(self) -> bool:
        """True in a fork of the process that made the link."""
        return os.getpid() != self._pid

    def require_maker(self) -> None:
        """Refuse a fork.

        Raises:
            KeeperError: this process is not the one that made the link.
        """
        if self.is_forked:
            raise KeeperError(
                "a clock lease belongs to the process that acquired it; this is a fork of it"
            )

    def ask(self, op: str, *, fds: tuple[int, ...] = (), **fields: Any) -> dict[str, Any]:
        """One request and its reply.

        Raises:
            ClockwrightError: what the keeper refused with.
            KeeperError: the keeper is gone, or this process is a fork.
        """
        self.require_maker()
        with self._lock:
            self._last_id += 1
            line = protocol.encode({"id": self._last_id, "op": op, **fields})
            try:
                if fds:
                    sent = socket.send_fds(self._connection, [line], fds)
                    line = line[sent:]
                # A refused connection is closed at once; the reason is still there to be read.
                with contextlib.suppress(BrokenPipeError):
                    self._connection.sendall(line)
                reply = self._receive()
            except OSError as error:
                raise _gone(error.strerror or str(error)) from error
        if reply.get("ok") is not True:
            raise protocol.error_from_json(reply.get("error"))
        return reply

    def _receive(self) -> dict[str, Any]:
        while True:
            data = self._connection.recv(1 << 16)
            if not data:
                raise _gone("it closed the connection")
            for reply in self._reader.feed(data):
                # Without an id: the connection itself was refused.
                if reply.get("id") in (self._last_id, None):
                    return reply

    def close(self) -> None:
        """Close this process's end; the maker also waits for its private keeper to end."""
        self._connection.close()
        if self._process is not None and not self.is_forked:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_REPLY_TIMEOUT_S)


def _gone(why: str) -> KeeperError:
    return KeeperError(
        f"the clock keeper is gone ({why}); its guardian gives the clocks back. Start again, and "
        "see `clockwright doctor` if clocks stay locked"
    )
