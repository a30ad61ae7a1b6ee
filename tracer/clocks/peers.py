"""Who is at the other end of the socket, and whether that process still lives.

Sources: unix(7) SO_PEERCRED, SO_PEERGROUPS in linux/socket.h (number 59), pidfd_open(2).
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...data.errors import RightsError

__all__ = ["Credentials", "check_may_connect", "peer_credentials", "process_name", "watch_process"]

_SO_PEERGROUPS = 59
_MOST_BYTES = 1024  # Python's own limit on the answer: 256 groups


@dataclass(frozen=True)
class Credentials:
    """The kernel's word on a peer, from when it connected.

    Attributes:
        pid: its process; 0 if it lives in a process namespace this one cannot see.
        uid: its user.
        groups: its groups, the primary one included.
    """

    pid: int
    uid: int
    groups: frozenset[int]


def peer_credentials(connection: socket.socket) -> Credentials:
    """Ask the kernel who made the other end of a Unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return Credentials(pid, uid, frozenset((gid, *_peer_groups(connection, uid, gid))))


def _peer_groups(connection: socket.socket, uid: int, gid: int) -> Iterable[int]:
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)
    except OSError:
        # A kernel before 4.13, or more groups than fit: what the user database says.
        try:
            return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
        except KeyError:
            return ()
    return struct.unpack(f"{len(packed) // 4}I", packed)


def check_may_connect(peer: Credentials, group_id: int | None) -> None:
    """Let in root, the keeper's own user, and members of the operators' group.

    The socket's mode says the same; this holds also where somebody widened the mode.

    Raises:
        RightsError: somebody else.
    """
    if peer.uid in (0, os.geteuid()) or (group_id is not None and group_id in peer.groups):
        return
    needed = "its own user" if group_id is None else f"its own user or group {group_id}"
    raise RightsError(
        f"user {peer.uid} may not use this clock keeper, which serves root, {needed}; an operator "
        "grants it with `serve --group GROUP` and membership of that group"
    )


def watch_process(pid: int) -> int | None:
    """A file descriptor that becomes readable when the process ends; None if there is no such way.

    A process that has ended already gives None too, so its socket's end must be watched as well.
    """
    if pid <= 0:
        return None
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def process_name(pid: int) -> str:
    """``1234 (python)``, or the number alone if the process is gone."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return str(pid)
    return f"{pid} ({name})"
