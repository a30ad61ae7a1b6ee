"""The keeper's process: connections in, requests to the `keeper`, and every way an owner can end.

One thread with a selector. It watches the listening socket, each owner's socket and process, the
guardian, and the signals that ask the keeper to end; a tick every 20 ms while anybody holds a
lease looks at heartbeats and locks. A slow reader costs only itself: replies wait in a buffer, and
an owner that lets it grow is dropped.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import os
import selectors
import signal
import socket
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...data.errors import ClockwrightError, FormatError, KeeperError
from . import protocol
from .keeper import Keeper, Owner
from .peers import Credentials, check_may_connect, peer_credentials, watch_process

__all__ = ["Server", "listen"]

_log = logging.getLogger("clockwright.clocks")
_TICK_S, _IDLE_TICK_S = 0.02, 1.0
_MOST_PEERS, _MOST_FDS, _MOST_UNREAD_BYTES = 256, 4, 16 << 20
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def listen(path: Path, group_id: int | None) -> socket.socket:
    """A listening socket that the keeper's user, and the group if there is one, can reach.

    Raises:
        KeeperError: another keeper listens there, or the path cannot be used.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # It takes its name last, so that whoever finds it finds it listening, with its final mode.
    unnamed = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)
        _refuse_living(path)
        _bind_private(listener, unnamed)
        if group_id is not None:
            os.chown(unnamed, -1, group_id)
            unnamed.chmod(0o660)
        listener.listen(64)
        unnamed.rename(path)
    except OSError as error:
        listener.close()
        unnamed.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise KeeperError(f"the clock keeper cannot listen at {path}: {reason}") from error
    except KeeperError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _bind_private(listener: socket.socket, path: Path) -> None:
    umask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(umask)


def _refuse_living(path: Path) -> None:
    """A dead keeper's socket may be replaced; a living one's, and anything else, may not."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise KeeperError(f"{path} exists and is no socket; name another --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        pid = peer_credentials(probe).pid
    raise KeeperError(f"a clock keeper (process {pid}) already listens at {path}")


@dataclass(eq=False)
class _Peer:
    """One connection and what is known of its other end."""

    socket: socket.socket
    owner: Owner
    process_fd: int | None
    reader: protocol.LineReader = field(default_factory=protocol.LineReader)
    unread: bytearray = field(default_factory=bytearray)
    fds: collections.deque[int] = field(default_factory=collections.deque)


class Server:
    """Serves until a signal, or until its only connection ends.

    Args:
        keeper: answers and holds the leases.
        listener: where owners connect; None for a private keeper.
        path: the listener's path, removed at the end.
        connection: a private keeper's only connection.
        group_id: members of this group may connect too.
    """

    def __init__(
        self,
        keeper: Keeper,
        *,
        listener: socket.socket | None = None,
        path: Path | None = None,
        connection: socket.socket | None = None,
        group_id: int | None = None,
    ) -> None:
        self._keeper, self._listener, self._path = keeper, listener, path
        self._group_id = group_id
        self._peers: list[_Peer] = []
        self._selector = selectors.DefaultSelector()
        self._ending = ""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
        if connection is not None:
            self._add(connection)

    def run(self) -> None:
        """Serve; on the way out, whatever the way, every lease is ended."""
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._wake)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)  # the wake-up pipe carries it
        try:
            self._watch_guardian()
            while not self._ending and (self._listener is not None or self._peers):
                busy = any(peer.owner.leases for peer in self._peers)
                ready = self._selector.select(_TICK_S if busy else _IDLE_TICK_S)
                began_s = time.monotonic()
                for key, _ in ready:
                    key.data(key.fileobj)
                # After a slow request (a disk's sync, a driver's start) heartbeats may lie unread.
                self._keeper.tick(heard_all=time.monotonic() - began_s < _TICK_S)
        finally:
            self._keeper.close(self._ending or "the keeper ends")
            signal.set_wakeup_fd(-1)
            for peer in list(self._peers):
                self._drop(peer, "")
            self._close_fds()

    def _close_fds(self) -> None:
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._listener is not None:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            self._listener.close()

    def _wake(self, _: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            names = [signal.Signals(number).name for number in os.read(self._wake_read, 64)]
            self._ending = f"the keeper got {', '.join(names)}"

    def _watch_guardian(self) -> None:
        if self._keeper.guardian.fd >= 0:
            self._selector.register(
                self._keeper.guardian.fd, selectors.EVENT_READ, self._hear_guardian
            )

    def _hear_guardian(self, fd: Any) -> None:
        guardian = self._keeper.guardian
        if guardian.notice():
            return
        self._selector.unregister(fd)
        try:
            guardian.restart()
        except KeeperError as error:
            self._keeper.end_unguarded(str(error))
        self._watch_guardian()

    def _accept(self, _: Any) -> None:
        assert self._listener is not None
        try:
            connection, _address = self._listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                _log.error("cannot accept a connection: %s", error.strerror)
                time.sleep(_TICK_S)
            return
        if len(self._peers) >= _MOST_PEERS:
            connection.close()
            return
        self._add(connection)

    def _add(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        credentials = peer_credentials(connection)
        if not self._may_connect(connection, credentials):
            connection.close()
            return
        owner = Owner(credentials.pid, time.monotonic())
        peer = _Peer(connection, owner, watch_process(credentials.pid))
        self._keeper.owners.append(owner)
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._serve(peer))
        if peer.process_fd is not None:
            ended = f"process {owner.pid} ended"
            self._selector.register(
                peer.process_fd, selectors.EVENT_READ, lambda _: self._drop(peer, ended)
            )

    def _may_connect(self, connection: socket.socket, credentials: Credentials) -> bool:
        try:
            check_may_connect(credentials, self._group_id)
        except ClockwrightError as error:
            refusal = {"id": None, "ok": False, "error": protocol.error_to_json(error)}
            with contextlib.suppress(OSError):
                connection.send(protocol.encode(refusal))
            return False
        return True

    def _serve(self, peer: _Peer) -> None:
        """Read what has come, answer it, and write what is waiting."""
        if peer not in self._peers:
            return
        try:
            data, fds, _, _ = socket.recv_fds(peer.socket, 1 << 16, _MOST_FDS)
            peer.fds.extend(fds)
            if not data:
                self._drop(peer, f"process {peer.owner.pid} closed its connection")
                return
            messages = peer.reader.feed(data)
        except BlockingIOError:
            messages = []
        except (OSError, FormatError) as error:
            self._drop(peer, f"the connection of process {peer.owner.pid} failed: {error}")
            return
        for message in messages:
            reply = self._keeper.answer(peer.owner, message, peer.fds)
            peer.unread += protocol.encode(reply)
        while len(peer.fds) > _MOST_FDS:
            os.close(peer.fds.popleft())
        self._write(peer)

    def _write(self, peer: _Peer) -> None:
        try:
            while peer.unread:
                sent = peer.socket.send(peer.unread)
                del peer.unread[:sent]
        except BlockingIOError:
            if len(peer.unread) > _MOST_UNREAD_BYTES:
                self._drop(peer, f"process {peer.owner.pid} does not read its replies")
                return
        except OSError as error:
            self._drop(peer, f"process {peer.owner.pid} cannot be answered: {error.strerror}")
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unread else 0)
        self._selector.modify(peer.socket, events, lambda _: self._serve(peer))

    def _drop(self, peer: _Peer, why: str) -> None:
        """The end of an owner: its clocks go back, then its connection."""
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._keeper.end_leases(peer.owner, why)
        self._keeper.owners.remove(peer.owner)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.process_fd is not None:
            self._selector.unregister(peer.process_fd)
            os.close(peer.process_fd)
        for fd in peer.fds:
            os.close(fd)
