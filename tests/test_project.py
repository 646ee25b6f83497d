"""The project's own promises: what is public, what the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ownpace
from ownpace.fleet import read_toml

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


PYTHON = [(page.name, number, code) for page in PAGES for number, code in enumerate(blocks(page, "python"))]


@pytest.mark.parametrize(("page", "number", "code"), PYTHON, ids=[f"{page}-{n}" for page, n, _ in PYTHON])
def test_python_in_the_documentation_runs(page, number, code, capsys, tmp_path, monkeypatch):
    for framework, ours in (("lightning", "lightning|fabric"), ("transformers", "hf"), ("accelerate", "hf")):
        if re.search(rf"(import|from) {framework}|integrations\.({ours})", code):
            pytest.importorskip(framework)
    monkeypatch.chdir(tmp_path)  # some of them write files
    exec(compile(code, f"{page} block {number}", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_the_documented_fleet_file_is_one(tmp_path):
    (example,) = blocks(ROOT / "docs" / "fleets.md", "toml")
    path = tmp_path / "fleet.toml"
    path.write_text(example, encoding="utf-8")
    assert [worker.name for worker in read_toml(path).workers] == ["new-0", "new-1", "old-0"]


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    text = re.sub(r"^ *(`{3,}).*?^ *\1$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_public_names_are_those_listed_and_documented():
    public = {name for name in dir(ownpace) if not name.startswith("_")}
    modules = {"algorithms", "auto", "cli", "core", "drop_in", "engines", "fleet", "integrations", "measuring"}
    modules |= {"blocks", "planning", "report", "run", "tasks", "testing"}
    # Names are imported when they are used, by these two.
    assert public - modules - {"TYPE_CHECKING", "late_names"} == set(ownpace.__all__)
    assert all(getattr(ownpace, name).__doc__ for name in ownpace.__all__)
