"""What tests of frameworks share."""

from __future__ import annotations

from tests.process.conftest import start as start

collect_ignore_glob = ["*_runs.py"]
"""Not searched for doctests: they import frameworks that may not be there."""
