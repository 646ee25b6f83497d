"""A package that has a map, a line for each of its modules at its top, leaves none out; what is named is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ownpace"


def modules_of(package: Path) -> set[str]:
    return {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}


def map_of(package: Path) -> str:
    """The docstring, if lines of it begin with names of modules."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    first = set(re.findall(r"^ *(\w+)(?:, \w+)*  +\S", text, re.MULTILINE))
    return text if len(first & modules_of(package)) > 2 else ""


PACKAGES = [path.parent for path in sorted(SOURCE.rglob("__init__.py")) if map_of(path.parent)]


def test_most_packages_have_a_map():
    assert len(PACKAGES) >= 25


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_map_names_every_module(package):
    assert modules_of(package) - set(re.findall(r"\w+", map_of(package))) == set()


def test_modules_that_are_named_in_the_source_are_there():
    modules = {"." + ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    # `fleet.batches` is a method of what `ownpace.join` returns.
    packages = {path.parent.name for path in SOURCE.rglob("__init__.py")} - {"ownpace", "fleet"}
    wrong = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)`", path.read_text(encoding="utf-8"))
        if name.partition(".")[0] in packages and not any(f"{module}.".endswith(f".{name}.") for module in modules)
    ]
    assert wrong == []
