"""The docs say what the code does: the reference is current, links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

from clockwright.data.sweep_csv import read_sweep
from clockwright.data.units import GOVERNOR

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_reference_is_what_the_code_says():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == module.reference(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_changelog_names_the_version():
    from clockwright import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_sweep_that_the_import_page_shows_is_one(tmp_path):
    page = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```\n(kernel,core_mhz.*?)```", page, re.DOTALL)
    (tmp_path / "sweep.csv").write_text(example)
    trace = read_sweep(tmp_path / "sweep.csv")
    assert trace.baseline.pair == GOVERNOR
    assert len(trace.pairs) == len(trace.timeline) == 2
