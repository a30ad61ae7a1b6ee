"""Memory grows with what is kept of a file, not with the file."""

import subprocess
import sys

import pytest

from tests.tracer.importers.kineto_files import document, kernel

MEASURE = """
import resource, sys
from clockwright.tracer.importers import import_file
import clockwright.tracer.importers.ranks
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import_file(sys.argv[1])
before = peak()
result = import_file(sys.argv[2])
print(result.kernels, (peak() - before) * 1024)
"""


@pytest.mark.slow
def test_a_large_file_of_few_kernels_takes_little_memory(tmp_path):
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_text(document(*[kernel(ts=f"{n}.0") for n in range(1, 9)]))
    frame = (
        '{"ph": "X", "cat": "python_function", "name": "torch/nn/modules/linear.py(117): forward", '
        '"pid": 1, "tid": 1, "ts": 12345.678, "dur": 12.345, '
        '"args": {"Python id": 1, "Python parent id": 0, "Ev Idx": 1}}'
    )
    with large.open("w") as file:
        file.write('{"traceEvents": [\n' + kernel(ts="1.0"))
        block = (",\n" + frame) * 1000
        for _ in range(700):
            file.write(block)
        file.write("]}")
    assert large.stat().st_size > 120e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
    )
    kernels, growth = done.stdout.split()
    assert int(kernels) == 1
    assert int(growth) < 40e6
