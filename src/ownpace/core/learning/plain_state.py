"""A run's state as plain data, so that reading one from a file runs nobody's code."""

from __future__ import annotations

from collections.abc import Mapping

PlainState = Mapping[str, object]
"""Names, and for each a number, a string, a truth value, None, a tensor, or mappings and sequences of these."""
