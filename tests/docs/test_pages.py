"""What pages take from modules is what the modules say; every algorithm has a page and a row."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ownpace import ALGORITHMS

ROOT = Path(__file__).parent.parent.parent
_spec = importlib.util.spec_from_file_location("pages", ROOT / "scripts" / "pages.py")
assert _spec is not None
assert _spec.loader is not None
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)
WRITTEN = pages.pages()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_a_page_says_what_its_modules_say(page):
    text = page.read_text(encoding="utf-8")
    assert text == WRITTEN[page], "this page differs from its modules; `python scripts/pages.py` writes it"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithms_page_takes_its_rule_and_parameters_from_the_module(name):
    text = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    for what in ("rule", "parameters"):
        assert f"<!-- from the module: {what} -->\n" in text


def test_every_algorithm_stands_in_the_table_of_algorithms():
    text = (ROOT / "docs" / "algorithms" / "README.md").read_text(encoding="utf-8")
    for name, cls in ALGORITHMS.items():
        assert f"| [`{name}`]({name}.md) |" in text
        file = cls.__module__.rsplit(".", 1)[1] + ".py"
        assert f"[{file}](../../src/ownpace/algorithms/{file})" in text


def test_a_rule_is_all_indented_blocks_of_the_docstring():
    written = "\n".join(pages.OF_AN_ALGORITHM["rule"](ALGORITHMS["wp"]))
    assert written.startswith("```\nround:  common start")
    assert "weight_i w_i\n\n`exp`" in written


def test_inherited_fields_are_among_the_parameters():
    rows = "\n".join(pages.OF_AN_ALGORITHM["parameters"](ALGORITHMS["pace"]))
    assert "| `smoothing` | 0.3 | number |" in rows
    assert "| `micro` | equal-time | `fixed`, `equal-time` |" in rows


def test_a_name_is_a_class_a_module_or_a_package():
    assert "| `rank` | `int` | My index among the workers. |" in pages._content(ROOT, "core.contract.roles.Worker")
    assert "total = await sync" in pages._content(ROOT, "core.contract.roles")
    assert "| `LocalRound` |" in pages._content(ROOT, "core.blocks")
    with pytest.raises(SystemExit, match="renamed"):
        pages._content(ROOT, "core.contract.roles.Workman")
