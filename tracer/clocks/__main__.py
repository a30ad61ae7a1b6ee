"""``python -m clockwright.tracer.clocks``: the keeper's program, small enough to run as root.

``serve`` is the keeper, ``guard`` its guardian (started by it), ``repair`` gives back what dead
keepers left set and ends. Exit status 0: nothing is left set; 1: something is; 2: bad options;
4: the keeper could not start.
"""

from __future__ import annotations

import argparse
import grp
import json
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from ...data.errors import ClockwrightError, InputError
from ...data.units import GOVERNOR, parse_duration_ns, parse_pair
from .granting import KeeperOptions
from .guardian import guard
from .journal import STATE_VARIABLE, default_state_dir
from .keeper import Keeper
from .limits import NS_PER_S, Limits
from .link import DEFAULT_SOCKET
from .restore import repair
from .server import Server, listen

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="clockwright keeper: %(message)s", level=logging.WARNING)
    try:
        if options.command == "guard":
            return guard(options.lifeline, options.ready, options.keeper, options.state)
        if options.command == "repair":
            return _repair(options)
        _serve(options)
    except ClockwrightError as error:
        sys.stderr.write(f"clockwright keeper: {error}\n")
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="clockwright keeper", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="keep clocks for the processes that connect")
    serve.add_argument("--socket", type=Path, default=DEFAULT_SOCKET)
    serve.add_argument("--connection", type=int, help=argparse.SUPPRESS)
    serve.add_argument("--group", help="members of this group may connect (name or number)")
    serve.add_argument("--dry", action="store_true", help="everything but setting")
    serve.add_argument("--gpu", action="append", default=[], help="UUID served; default: all")
    serve.add_argument("--max-switches", type=int, default=50, help="a second and GPU")
    serve.add_argument("--heartbeat", default="5s", help="a silent owner loses its lease")
    serve.add_argument("--settle", default="300ms", help="until a new clock is reported")
    serve.add_argument("--poll", default="20us", help="between looks at a page; 0 spins")
    serve.add_argument("--standing-pair", default="governor", help="what to go back to")
    guardian = commands.add_parser("guard")
    guardian.add_argument("--lifeline", type=int, required=True)
    guardian.add_argument("--ready", type=int, required=True)
    guardian.add_argument("--keeper", required=True)
    mender = commands.add_parser("repair", help="give back what dead keepers left set")
    mender.add_argument("--json", action="store_true")
    for command in (serve, guardian, mender):
        command.add_argument(
            "--state",
            type=Path,
            default=default_state_dir(),
            help=f"folder of journals; default ${STATE_VARIABLE}, or /var/lib/clockwright",
        )
    return parser


def _serve(options: argparse.Namespace) -> None:
    if options.max_switches < 1:
        raise InputError(f"--max-switches must be 1 or more, got {options.max_switches}")
    group_id = None if options.group is None else _group_id(options.group)
    keeper = Keeper(
        KeeperOptions(
            dry=options.dry,
            state=options.state,
            limits=Limits(
                max_switches_per_s=options.max_switches,
                heartbeat_s=parse_duration_ns(options.heartbeat) / NS_PER_S,
                settle_s=parse_duration_ns(options.settle) / NS_PER_S,
            ),
            poll_sleep_s=parse_duration_ns(options.poll) / NS_PER_S,
            standing=parse_pair(options.standing_pair) if options.standing_pair else GOVERNOR,
            gpus=tuple(options.gpu),
        )
    )
    connection = None if options.connection is None else socket.socket(fileno=options.connection)
    try:
        keeper.start()
        # Last, so that a socket means a keeper that has repaired and serves.
        listener = listen(options.socket, group_id) if connection is None else None
        server = Server(
            keeper,
            listener=listener,
            path=options.socket,
            connection=connection,
            group_id=group_id,
        )
    except BaseException:
        keeper.guardian.close()
        raise
    server.run()


def _group_id(group: str) -> int:
    if group.isascii() and group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise InputError(f"--group {group}: this host has no such group") from None


def _repair(options: argparse.Namespace) -> int:
    notes = repair(options.state, wait_s=2.0)
    if options.json:
        sys.stdout.write(json.dumps([vars(note) for note in notes]) + "\n")
    else:
        sys.stdout.writelines(f"{note.text}\n" for note in notes)
    return 0 if all(note.done for note in notes) else 1


if __name__ == "__main__":
    sys.exit(main())
