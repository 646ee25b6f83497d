"""What the JSON files of a run say, whoever wrote them."""

from __future__ import annotations

import os

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.run.saved import saved_content


def test_a_pipe_in_a_files_place_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="is not a plain file"):
        saved_content(tmp_path / "config.json")
