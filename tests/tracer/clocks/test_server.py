"""The operator's keeper: who may connect, what odd clients can do, and a disk that is full."""

from __future__ import annotations

import grp
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clockwright.data.errors import KeeperError, RightsError
from clockwright.data.units import ClockPair
from clockwright.tracer.clocks import KeeperClient
from clockwright.tracer.clocks.peers import Credentials, check_may_connect, peer_credentials
from tests.fake_nvml.driver import FakeGpu, FakeNvml
from tests.tracer.clocks.processes import Processes, wait_until

HIGH, LOW = ClockPair(1410, 3201), ClockPair(1200, 2201)
TABLE = {1: HIGH, 2: LOW}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tiny file system needs root")
def test_a_really_full_file_system_refuses_the_lease(
    gpu: FakeGpu, fake_nvml: FakeNvml, state: Path
) -> None:
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4096", "tmpfs", str(state)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this sandbox does not let root mount a file system")
    try:
        (state / "filler").write_bytes(b"x" * 4096)
        with KeeperClient.start() as client:
            with pytest.raises(KeeperError, match="No space left on device; nothing was set"):
                client.acquire(gpu.uuid, TABLE)
            assert fake_nvml.setters() == []
    finally:
        subprocess.run(["umount", str(state)], check=True)


def test_the_socket_is_for_its_user_and_the_group_named(state: Path, processes: Processes) -> None:
    processes.keeper()
    assert stat.S_IMODE(processes.socket.stat().st_mode) == 0o600


def test_with_a_group_the_socket_is_for_it_too(state: Path, processes: Processes) -> None:
    processes.socket = state.parent / "run" / "keeper.sock"
    group = grp.getgrgid(os.getegid()).gr_name
    processes.keeper("--group", group)
    found = processes.socket.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, os.getegid())
    assert stat.S_IMODE(processes.socket.parent.stat().st_mode) == 0o755
    with KeeperClient.start(socket=processes.socket) as client:
        assert client.keeper_pid > 0


@pytest.mark.parametrize(
    ("peer", "group_id", "allowed"),
    [
        (Credentials(1, 0, frozenset({0})), None, True),
        (Credentials(1, os.geteuid(), frozenset()), None, True),
        (Credentials(1, 54321, frozenset({7})), None, False),
        (Credentials(1, 54321, frozenset({7})), 7, True),
        (Credentials(1, 54321, frozenset({8})), 7, False),
    ],
)
def test_who_may_connect(peer: Credentials, group_id: int | None, allowed: bool) -> None:
    if allowed:
        check_may_connect(peer, group_id)
    else:
        with pytest.raises(RightsError, match="user 54321 may not use this clock keeper"):
            check_may_connect(peer, group_id)


def test_the_kernel_names_the_peer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        found = peer_credentials(ours)
    assert (found.pid, found.uid) == (os.getpid(), os.geteuid())
    assert os.getegid() in found.groups


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("member", [False, True])
def test_another_user_is_let_in_by_group_only_even_where_the_socket_is_open(
    member: bool, state: Path, processes: Processes
) -> None:
    processes.keeper("--group", "54321")
    processes.socket.chmod(0o666)
    for folder in [state.parent, *state.parent.parents]:
        if stat.S_IMODE(folder.stat().st_mode) & 0o111 != 0o111:
            folder.chmod(folder.stat().st_mode | 0o111)
    code = (
        "import os, sys\n"
        "from clockwright.tracer.clocks import KeeperClient\n"
        f"os.setgroups([54321] if {member} else []); os.setgid(65534); os.setuid(65534)\n"
        "KeeperClient.start(socket=sys.argv[1]).close()\n"
    )
    command = [sys.executable, "-c", code, str(processes.socket)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == member, done.stderr
    if not member:
        assert "RightsError: user 65534 may not use this clock keeper" in done.stderr


def test_a_second_keeper_at_the_same_socket_is_refused(state: Path, processes: Processes) -> None:
    first = processes.keeper()
    command = [sys.executable, "-m", "clockwright.tracer.clocks", "serve", "--socket"]
    done = subprocess.run(
        [*command, str(processes.socket)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert f"(process {first.pid}) already listens" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dead_keepers_socket_is_taken_over_and_a_file_is_not(
    state: Path, processes: Processes
) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(processes.socket))
    dead.close()
    command = [sys.executable, "-m", "clockwright.tracer.clocks", "serve", "--socket"]
    (state.parent / "file").touch()
    done = subprocess.run(
        [*command, str(state.parent / "file")], capture_output=True, text=True, check=False
    )
    assert "exists and is no socket" in done.stderr
    keeper = processes.keeper()

    def answers() -> bool:
        try:
            with KeeperClient.start(socket=processes.socket) as client:
                return client.keeper_pid == keeper.pid
        except KeeperError:
            return False

    wait_until(answers, "the keeper answers")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-switches", "0"], "--max-switches must be 1 or more"),
        (["--group", "no-such-group"], "no such group"),
        (["--heartbeat", "soon"], "duration with a unit"),
        (["--standing-pair", "fast"], "clock pair must be"),
    ],
)
def test_bad_options_get_one_clear_line(options: list[str], message: str, state: Path) -> None:
    command = [sys.executable, "-m", "clockwright.tracer.clocks", "serve", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_odd_clients_end_only_themselves(gpu: FakeGpu, state: Path, processes: Processes) -> None:
    keeper = processes.keeper()
    with KeeperClient.start(socket=processes.socket) as client:
        client.acquire(gpu.uuid, TABLE)
        client.lock(HIGH)
        for line in (b"nonsense\n", b"[]\n", b"\xff\xfe\n", b"x" * (5 << 20)):
            with socket.socket(socket.AF_UNIX) as odd:
                odd.connect(str(processes.socket))
                odd.settimeout(5)
                try:
                    odd.sendall(line)
                    assert odd.recv(1) == b"", "the keeper hangs up"
                except (BrokenPipeError, ConnectionResetError):
                    pass
        with socket.socket(socket.AF_UNIX) as odd:
            odd.connect(str(processes.socket))
            odd.sendall(b'{"id": 1, "op": "no such thing"}\n{"id": 2}\n{"id": 3, "op": "arm"}\n')
            odd.settimeout(5)
            replies = b""
            while replies.count(b"\n") < 3:
                replies += odd.recv(4096)
            assert replies.count(b'"ok":false') == 3
        assert client.lock(LOW).pair == LOW
        assert keeper.poll() is None


def test_a_client_that_does_not_read_is_dropped_and_the_others_are_served(
    gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    processes.keeper()
    with KeeperClient.start(socket=processes.socket) as client:
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(str(processes.socket))
            deaf.settimeout(10)
            request = b'{"op":"status","id":"' + b"x" * 60_000 + b'"}\n'
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                for _ in range(2000):
                    deaf.sendall(request)
        assert client.status()["leases"] == {}


def test_a_keeper_busy_with_a_slow_request_does_not_take_its_own_deafness_for_silence(
    gpu: FakeGpu, fake_nvml: FakeNvml, state: Path, processes: Processes
) -> None:
    """Driver calls longer than the heartbeat, made for one owner, harms neither."""
    fake_nvml.set_count(2)
    second = fake_nvml.gpu(1)
    processes.keeper()
    with (
        KeeperClient.start(socket=processes.socket) as slow,
        KeeperClient.start(socket=processes.socket) as other,
    ):
        slow.acquire(gpu.uuid, TABLE, heartbeat_s=1.0)
        other.acquire(second.uuid, TABLE, heartbeat_s=1.0)
        other.lock(LOW)
        gpu.set(lock_call_ns=800_000_000)
        slow.lock(HIGH)
        gpu.set(lock_call_ns=0)
        other.check()
        assert (gpu.core_lock, second.core_lock) == ((1410, 1410), (1200, 1200))
