"""What a field of a run's description says of itself."""

from __future__ import annotations

from dataclasses import dataclass

RUN, LEARN, STOP, FAIL = "What to run", "How to learn", "When to stop", "When machines fail"
WRITE = "What to write"
"""Headings that options are listed under."""


@dataclass(frozen=True)
class Help:
    """One field of a run's description, in a sentence, and how the command line offers it."""

    text: str
    panel: str
    """The heading that it is listed under."""
    option: str | None = None
    """Names of the option, if they are not the field's: `-p/--parameter`."""
    metavar: str | None = None
