"""The solver's benchmark as it is called from the repository root."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_one_case_prints_medians_and_worsts_as_json() -> None:
    command = [
        sys.executable, "benchmarks/solver.py", "--kernels", "120", "--pairs", "20",
        "--switch", "2us,5us", "--seeds", "2", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    row = json.loads(line)
    assert 0 <= row["median_gap"] <= row["worst_gap"] <= row["target_gap"]
    assert 0 < row["median_s"] <= row["worst_s"]
    assert row["seeds"] == len(row["gaps"]) == 2
    assert row["peak_bytes"] > 1e7
