"""Build the sdist and wheel, install the wheel in a fresh environment, run the command elsewhere.

Run by `make package`, not by pytest: it takes a minute and builds outside the test environment.
Dependencies come from the environment that runs it, so nothing is downloaded twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    "clockwright/py.typed",
    "clockwright/data/schemas/schedule-1.json",
    "clockwright/data/schemas/report-1.json",
    "clockwright/tracer/gpu/protocol.py",
    "clockwright/optimizer/solver.py",
    "clockwright/replay/verify.py",
    "clockwright/charts/__init__.py",
)
SWEEP = """kernel,core_mhz,mem_mhz,time_ms,energy_mj
copy,auto,auto,1.0,10
copy,1000,800,1.001,8
gemm,auto,auto,2.0,30
gemm,1000,800,2.9,29
"""
OPTIMIZE = ("optimize", "T", "-o", "S.json", "--switches", "free", "--max-slowdown", "50%")
# A user's folder that holds the very names our folders have at the root.
USER_SCRIPT = """
import data, optimizer
assert data.MINE == optimizer.MINE == "the user's own", (data, optimizer)
import clockwright.data, clockwright.optimizer
assert clockwright.data is not data and clockwright.optimizer is not optimizer
print("the user's own modules are untouched")
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command; its output, or exit with what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        sys.exit(f"failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def fresh_python(folder: Path) -> Path:
    """A new virtual environment that sees this one's dependencies but not this checkout."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
    ).strip()
    for place in dict.fromkeys(path for path in sys.path if path.endswith("site-packages")):
        # A plain path line adds the folder without reading the .pth files inside it, so the
        # editable install of this checkout stays out.
        with (Path(site) / "dependencies.pth").open("a") as lines:
            lines.write(place + "\n")
    return python


def main() -> None:
    """Check the wheel from the tree and the wheel from the sdist."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        # No list of targets: build makes the sdist and then the wheel from that sdist.
        run(sys.executable, "-m", "build", "--no-isolation", "-o", place / "dist", ROOT, cwd=place)
        wheel = next((place / "dist").glob("*.whl"))
        names = set(zipfile.ZipFile(wheel).namelist())
        missing = [name for name in NEEDED if name not in names]
        if missing:
            sys.exit(f"{wheel.name} (built from the sdist) lacks {', '.join(missing)}")
        stray = [n for n in names if not n.startswith(("clockwright/", "clockwright-"))]
        if stray:
            sys.exit(f"{wheel.name} would install outside clockwright: {stray[0]}")
        python = fresh_python(place / "venv")
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, cwd=place)
        user = place / "elsewhere"
        (user / "data").mkdir(parents=True)
        (user / "data" / "__init__.py").write_text('MINE = "the user\'s own"\n')
        (user / "optimizer.py").write_text('MINE = "the user\'s own"\n')
        (user / "script.py").write_text(USER_SCRIPT)
        (user / "sweep.csv").write_text(SWEEP)
        where = run(
            python, "-c", "import clockwright; print(clockwright.__file__)", cwd=user, env=env
        )
        if str(ROOT) in where:
            sys.exit(f"the fresh environment imports the checkout, not the wheel: {where}")
        command = python.parent / "clockwright"
        sys.stdout.write(run(python, "script.py", cwd=user, env=env))
        sys.stdout.write(run(command, "--version", cwd=user, env=env))
        sys.stdout.write(run(command, "import", "sweep.csv", "-o", "T", cwd=user, env=env))
        sys.stdout.write(run(command, *OPTIMIZE, cwd=user, env=env))
        sys.stdout.write(f"{wheel.name}: built from the sdist, installed, and run elsewhere\n")


if __name__ == "__main__":
    main()
