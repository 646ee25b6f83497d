"""The recipes of CONTRIBUTING.md, followed in a copy of the tree: they are complete, or these tests fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FOLDERS = ("src", "tests", "docs", "scripts", "benchmarks", "examples")
BLOCK = re.compile(
    r'^( *)(`{3,})\w+ title="([^"]+)"(?: after="((?:\\"|[^"])+)")?\n(.*?)^\1\2$', re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    """A block of a recipe: a file, or what belongs into one after the line that begins like this."""

    path: str
    after: str | None
    text: str


def blocks(recipe: str) -> list[Block]:
    section = re.split(r"^## ", TEXT.split(f"## {recipe}\n")[1], flags=re.MULTILINE)[0]
    return [
        Block(
            path,
            after.replace('\\"', '"') or None,
            "".join(line[len(indent) :] or "\n" for line in text.splitlines(True)),
        )
        for indent, _, path, after, text in BLOCK.findall(section)
    ]


def follow(recipe: str, tree: Path) -> None:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(file, tree)
    for block in blocks(recipe):
        path = tree / block.path
        if block.after is None:
            assert not path.exists(), f"{path} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        else:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            (place,) = [number for number, line in enumerate(lines, 1) if line.startswith(block.after)]
            path.write_text("".join([*lines[:place], placed(block), *lines[place:]]), encoding="utf-8")


def placed(block: Block) -> str:
    """The text of a block as it stands in its file: a method belongs into the class, after a blank line."""
    assert block.after is not None
    is_method = block.text.startswith(("@", "def ", "async def "))
    if not is_method or not block.after.startswith(8 * " "):
        return block.text
    return "\n" + textwrap.indent(block.text, 4 * " ")


def run(tree: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def check(tree: Path, *tests: str, only: str) -> None:
    run(tree, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests, "-k", only)


def check_style(tree: Path, recipe: str) -> None:
    for block in blocks(recipe):
        if block.path.endswith(".py"):
            run(tree, "-m", "ruff", "check", "--no-cache", block.path)
            run(tree, "-m", "ruff", "format", "--no-cache", "--check", block.path)


@pytest.mark.slow
@pytest.mark.timeout(300)  # it starts a few processes of its own, each of which imports torch
def test_an_algorithm_is_added_as_the_recipe_says(tmp_path):
    follow("Add an algorithm", tmp_path)
    run(tmp_path, "scripts/pages.py")
    assert "| `batches` | 1 |" in (tmp_path / "docs" / "algorithms" / "patient.md").read_text(encoding="utf-8")
    check_style(tmp_path, "Add an algorithm")
    check(
        tmp_path,
        "tests/docs/test_pages.py",
        "tests/docs/test_prose.py",
        "tests/test_project.py",
        only="(patient or algorithm) and not in_the_readme",
    )
    check(
        tmp_path, "tests/conformance/test_patient.py", "tests/conformance/test_registry.py", only="patient or escapes"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_task_is_added_as_the_recipe_says(tmp_path):
    follow("Add a task", tmp_path)
    check_style(tmp_path, "Add a task")
    check(tmp_path, "tests/unit/tasks/test_spirals.py", only="spirals")
    assert "spirals" in run(tmp_path, "-m", "ownpace", "list")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_answer_is_added_as_the_recipe_says(tmp_path):
    follow("Add an answer", tmp_path)
    run(tmp_path, "scripts/pages.py")
    assert "| `samples_seen` | `int` |" in (tmp_path / "docs" / "reference.md").read_text(encoding="utf-8")
    check_style(tmp_path, "Add an answer")
    check(tmp_path, "tests/process/test_samples_seen.py", only="seen")


@pytest.mark.parametrize("recipe", ["Add an algorithm", "Add a task", "Add an answer"])
def test_a_recipe_says_where_each_block_belongs(recipe):
    for path, after, _ in blocks(recipe):
        if after is None:
            assert not (ROOT / path).exists()
        else:
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
            assert sum(line.startswith(after) for line in lines) == 1, f"{path}: {after}"
    assert len(blocks(recipe)) >= 3


def test_files_and_folders_named_in_recipes_exist():
    prose = re.sub(r"^ *(`{3,}).*?^ *\1$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`((?:src|tests|docs|scripts|benchmarks)/[\w/.-]+)`", textwrap.dedent(prose))
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []
