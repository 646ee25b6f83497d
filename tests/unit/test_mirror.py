"""Unit tests stand where their module stands."""

from __future__ import annotations

from pathlib import Path

import pytest

import ownpace

UNIT = Path(__file__).parent
SOURCE = Path(ownpace.__file__).parent
FILES = [path.relative_to(UNIT) for path in sorted(UNIT.rglob("test_*.py")) if path.parent != UNIT]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_of_tests_is_named_for_a_module_or_for_its_folder(path):
    name = path.stem.removeprefix("test_")
    folder = SOURCE / path.parent
    assert folder.is_dir()
    assert name == folder.name or any((folder / f"{each}.py").exists() for each in (name, f"{name}_"))


def test_there_is_something_to_compare():
    assert len(FILES) > 20
