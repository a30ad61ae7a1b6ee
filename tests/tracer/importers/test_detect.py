import subprocess
import sys

import pytest

from clockwright.data.errors import FormatError, InputError
from clockwright.tracer.importers import detect, import_file
from tests.tracer.importers.kineto_files import kernel, only, write

SWEEP = "kernel,core_mhz,mem_mhz,time_ms,energy_mJ\na,1000,5000,1.0,10\na,1200,5000,0.9,11\n"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"traceEvents": []}', "kineto"),
        (b"\xef\xbb\xbf [", "kineto"),
        (b"SQLite format 3\x00....", "nsys"),
        (b"stage,instruction,frequency,time,energy\n", "perseus"),
        (SWEEP.encode(), "sweep"),
    ],
)
def test_the_content_says_the_format(tmp_path, content, kind):
    path = tmp_path / "anything"
    path.write_bytes(content)
    assert detect(path) == kind


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"hello world", "neither JSON, SQLite nor a CSV table"),
        (b"\x7fELF\x00\x00", "binary data"),
        (b"PK\x03\x04zip", "zip archive"),
    ],
)
def test_other_content_is_refused_and_says_what_is_read(tmp_path, content, message):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises((FormatError, InputError), match=message):
        detect(path)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        import_file(tmp_path / "none.json")


def test_a_sweep_goes_to_the_sweep_reader(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(SWEEP)
    result = import_file(path)
    assert (result.format, result.kernels, result.steps) == ("sweep", 1, 1)
    assert str(only(result).baseline.pair) == "1200/5000"


def test_importing_loads_neither_torch_nor_solvers(tmp_path):
    path = write(tmp_path / "t.json", kernel())
    code = (
        "import sys\n"
        "from clockwright.tracer.importers import import_file\n"
        f"import_file({str(path)!r})\n"
        "print([m for m in ('torch', 'ortools', 'matplotlib', 'pynvml') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
