"""What tests of tasks share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    """No test sees the data or the cache of whoever runs it."""
    monkeypatch.delenv("OWNPACE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
