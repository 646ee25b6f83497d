"""No bytes from a socket are ever unpickled."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ownpace.engines.process

SOURCES = sorted(Path(ownpace.engines.process.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nothing_is_unpickled(path):
    """Except in the supervisor and by multiprocessing: what a process reads from its own parent's pipe."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if path.stem == "supervisor":
        return
    if path.stem == "hand_over":  # which pickles what the supervisor sends
        assert not used & {"load", "loads", "Unpickler"}
        return
    assert not imported & {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    assert not used & {"recv_pyobj", "send_pyobj", "Unpickler", "broadcast_object_list", "all_gather_object"}
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"load", "loads"}
        and isinstance(node.value, ast.Name)
        and node.value.id in {"torch", "pickle"}
    ]
