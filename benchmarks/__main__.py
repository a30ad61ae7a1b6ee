"""``make bench``: run every benchmark, or those named, one after the other in fresh processes.

Each prints ratios against a named peer from the same run. Nothing here is a test: a slow machine
changes figures, not a verdict.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# name -> arguments; each is a script beside this one
BENCHMARKS: dict[str, list[str]] = {
    "solver": ["--table", "--peers"],
    "importing": [],
}


def main() -> int:
    """Run them; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], help="which (default: all)")
    names = parser.parse_args().names or list(BENCHMARKS)
    worst = 0
    for name in names:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py"), *BENCHMARKS[name]]
        worst = max(worst, subprocess.run(command, check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
