"""Pages can be read: links with anchors lead to headings, lines are short, words are the project's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST = 125
UNWANTED = (
    r"\b(everybody|somebody|anybody|nobody|whoever|cards?|letters?|judged?|judging|in all(?=[,.;:])|the like|so many)\b"
)
"""Persons instead of parts of a program, and words that have a standard one: GPU, message, evaluate."""


def prose(page: Path) -> str:
    """The page without code, tables and what a script takes from modules, lines kept."""
    text = page.read_text(encoding="utf-8")
    for pattern in (r"<!-- from the module.*?<!-- end -->", r"^ *```.*?^ *```", r"`[^`\n]*`", r"^ *\|.*?$"):
        text = re.sub(pattern, lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    return text


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_headings_lead_to_one(page):
    links = re.findall(r"\]\(([^):#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    wrong = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in anchors((page.parent / target).resolve() if target else page)
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_of_prose_are_short(page):
    tables_apart = [line for line in page.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("|")]
    long = [line for line in tables_apart if len(line) > LONGEST and not line.startswith("![")]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_uses_the_projects_words(page):
    assert re.findall(UNWANTED, prose(page), re.IGNORECASE) == []
