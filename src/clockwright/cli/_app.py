"""The command group: finds subcommands, and turns every error into one line and a status."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from .._version import __version__
from ..data.errors import ClockwrightError

# command name -> module that defines a click command called `command`
_COMMANDS = {
    "trace": "trace",
    "import": "import_",
    "optimize": "optimize",
    "replay": "replay",
    "pareto": "pareto",
    "plot": "plot",
    "report": "report",
    "export": "export",
    "doctor": "doctor",
}


class _Group(click.Group):
    """Loads a subcommand's module only when that subcommand is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"{__package__}.{_COMMANDS[cmd_name]}")
        command: click.Command = module.command
        return command


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="clockwright")
def app() -> None:
    """Trace GPU kernels, choose a clock pair for each, replay the schedule and verify it."""


def run(argv: list[str]) -> int:
    """Run ``argv`` and return the exit status; see `clockwright.cli.main`."""
    try:
        result = app.main(args=argv, prog_name="clockwright", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        _complain(error.format_message())
        return 2
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return 130
    except ClockwrightError as error:
        _complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # The reader went away (`clockwright ... | head`); nobody is left to tell.
        sys.stderr.close()
        return 1
    return result if isinstance(result, int) else 0


def _complain(message: str) -> None:
    line = " ".join(message.split())
    sys.stderr.write(f"clockwright: error: {line}\n")
