"""Foreign text on a terminal."""

from __future__ import annotations


def printable(text: str, most: int = 200) -> str:
    r"""The text without what would command a terminal or cannot be written to it, and not too long.

    >>> printable("worker-0"), printable("\x1b[2J")
    ('worker-0', '\\x1b[2J')
    """
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:most])
    return shown if len(text) <= most else f"{shown}…"
