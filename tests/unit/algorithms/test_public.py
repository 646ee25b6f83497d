"""An algorithm of a user's own can do all that ours do, with public names alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ownpace
import ownpace.algorithms
import ownpace.blocks

PUBLIC = {*ownpace.__all__, *ownpace.blocks.__all__}
SOURCE = Path(ownpace.__file__).parent
FILES = [path for path in sorted((SOURCE / "algorithms").glob("*.py")) if path.stem != "__init__"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_our_algorithms_import_is_public(path):
    imports = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    names = {alias.name for node in imports if (node.module or "").startswith("ownpace") for alias in node.names}
    assert names - PUBLIC == set()


def test_every_building_block_is_public():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (SOURCE / "core" / "blocks").glob("*.py")]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = {node.name for tree in trees for node in tree.body if isinstance(node, kinds)}
    assert {name for name in names if not name.startswith("_")} - PUBLIC == set()
    assert [name for name in ownpace.blocks.__all__ if not hasattr(ownpace.blocks, name)] == []
