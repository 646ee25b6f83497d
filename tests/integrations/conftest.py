"""What tests of frameworks share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.started import Start, Started

collect_ignore_glob = ["*_runs.py"]
"""Not searched for doctests: they import frameworks that may not be there."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts commands; none of their processes outlives the test."""
    started: list[Started] = []

    def begin(command: list[str], **environment: str) -> Started:
        started.append(Started(tmp_path, command, **environment))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
