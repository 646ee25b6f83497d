"""Unit tests stand in the folder in which their module stands."""

from __future__ import annotations

from pathlib import Path

import ownpace

UNIT = Path(__file__).parent
SOURCE = Path(ownpace.__file__).parent
FILES = [path.relative_to(UNIT) for path in sorted(UNIT.rglob("test_*.py")) if path != Path(__file__)]


def test_every_folder_is_one_of_the_source_and_no_file_lies_beside_them():
    folders = {path.parent for path in FILES}
    assert len(folders) > 8
    assert [str(folder) for folder in sorted(folders) if not (SOURCE / folder).is_dir()] == []
    assert Path() not in folders
