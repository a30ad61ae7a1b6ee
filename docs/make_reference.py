"""Write docs/reference.md from the code: commands with their options, tables with their columns.

Run by `make docs`; a test fails where the file is older than the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from clockwright.cli._app import app
from clockwright.data import tables
from clockwright.data.table import Table

TARGET = Path(__file__).parent / "reference.md"
TABLES = (tables.TIMELINE, tables.SIGNATURES, tables.PAIRS, tables.PROFILE, tables.SWITCHES)


def commands() -> Iterator[str]:
    """Each command's help, as it prints it."""
    # With the settings the program runs under: click keeps what it first made of them.
    context = click.Context(app, info_name="clockwright", **app.context_settings)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        inner = click.Context(
            command, info_name=name, parent=context, terminal_width=96, max_content_width=96
        )
        yield f"### clockwright {name}\n\n```\n{command.get_help(inner)}\n```\n"


def table(declared: Table) -> Iterator[str]:
    """One table's columns."""
    yield f"### {declared.name}.parquet\n"
    yield "| column | type | unit | unknown allowed | meaning |\n|---|---|---|---|---|"
    for column in declared.columns:
        words = f" ({', '.join(column.words)})" if column.words else ""
        allowed = "yes" if column.nullable else "no"
        yield (
            f"| `{column.name}` | {column.kind} | {column.unit} | {allowed} | "
            f"{column.meaning}{words} |"
        )
    yield ""


def reference() -> str:
    """The whole page."""
    lines = [
        "# Reference\n",
        "Made from the code by `make docs`; do not edit.\n",
        "## Commands\n",
        "Exit status: 0 done (for `replay`: within the budget), 2 bad input, 3 over the budget,",
        "4 the GPU or the keeper refused, 5 the user's own step failed, 130 interrupted.\n",
        *commands(),
        "## Tables of a trace folder\n",
        "Times are ns, energies mJ, clocks MHz. Unknown is null, never 0.\n",
    ]
    for declared in TABLES:
        lines += table(declared)
    lines += [
        "## JSON files\n",
        "`trace-1.json`, `schedule-1.json` and `report-1.json` in `data/schemas/` are the JSON",
        "Schemas of a trace folder's `trace.json`, of the schedule and of the replay report; they",
        "are checked on write and on read.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
