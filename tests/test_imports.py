"""What an import loads, seen from a fresh process: planning needs no GPU library and no torch."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "pynvml", "ortools", "matplotlib", "numba", "transformers")


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import clockwright",
        "import clockwright.cli._app",
        "import clockwright.data.trace, clockwright.data.schedule",
        "import clockwright.tracer",
        "import clockwright.tracer.gpu",
        "import clockwright.tracer.clocks",
        "import clockwright.tracer.importers",
        "import clockwright.optimizer",
        "import clockwright.charts",
    ],
)
def test_an_import_loads_nothing_heavy(statement):
    assert not loaded_by(statement) & set(HEAVY)


def test_the_command_line_starts_without_pandas():
    heavy = {*HEAVY, "pandas", "pyarrow", "scipy"}
    assert not loaded_by("from clockwright.cli import main; main(['--version'])") & heavy


def test_the_keeper_needs_no_tables():
    assert not loaded_by("import clockwright.tracer.clocks") & {"pandas", "pyarrow", "scipy"}
