"""The plain models restate the papers: they must not borrow from what they are compared with."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PLAIN = Path(__file__).parent / "plain"
RUN_THE_ENGINE = {"__init__", "compare", "spy"}
"""These compare, and so have to run what is compared."""
REFERENCES = sorted(path.stem for path in PLAIN.glob("*.py") if path.stem not in RUN_THE_ENGINE)
# Data, the order of samples, the description of a fleet, and the records of a run.
SHARED = {
    "ownpace.core.contract.events",
    "ownpace.core.learning.sampling",
    "ownpace.core.learning.task",
    "ownpace.fleet",
    "ownpace.tasks",
}


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_shares_only_data_with_the_package(name):
    ours = {module for module in imported(PLAIN / f"{name}.py") if module.split(".")[0] == "ownpace"}
    assert ours <= SHARED
    theirs = {f"tests.conformance.plain.{module}" for module in RUN_THE_ENGINE} | {"tests.conformance.plain"}
    assert not imported(PLAIN / f"{name}.py") & theirs


def test_there_are_references():
    assert {"late", "model", "od", "ring", "server"} <= set(REFERENCES)
