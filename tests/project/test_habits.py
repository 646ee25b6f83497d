"""What the project's files say of each other is true: targets, figures, papers, the oldest torch."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ownpace

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SPEAK_OF_MAKE = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / ".pre-commit-config.yaml",
    ROOT / ".github" / "workflows" / "ci.yml",
    *(ROOT / "scripts").glob("*.py"),
]


@pytest.mark.parametrize("path", SPEAK_OF_MAKE, ids=lambda path: path.name)
def test_every_target_that_is_named_can_be_made(path):
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"(?:`|run: )make (?:[A-Z]+=\S+ )*([a-z-]+)", path.read_text(encoding="utf-8")))
    assert named <= targets


def test_the_figures_that_are_printed_are_those_that_are_explained():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Figures")[2]
    explained = dict(re.findall(r"^\| (.+?) \| (.+?) \|", page, re.MULTILINE))
    script = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "figures.py")], capture_output=True, text=True, check=True
    )
    table = script.stdout.partition("\n\nlines of source")[0].splitlines()
    printed = [re.split(r" {2,}", line) for line in table if not line.startswith(" ")]
    assert len(printed) > 5
    for name, _, wanted, *_ in printed:
        assert explained[name] == wanted.partition("   ")[0]


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    elsewhere = [
        path.name
        for path in (ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "README.md", *ROOT.glob("src/**/*.py"))
        if re.search(rf"""["' ]{re.escape(ownpace.__version__)}["'\s]""", path.read_text(encoding="utf-8"))
    ]
    assert elsewhere == ["version.py"]


def test_every_paper_that_is_cited_is_named_where_its_algorithm_stands():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    papers = re.findall(r"arXiv:([0-9.]+)", text)
    modules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/ownpace/algorithms").glob("*.py"))
    assert len(papers) == 4  # the fifth has a DOI
    assert [paper for paper in papers if f"arXiv {paper}" not in modules] == []
