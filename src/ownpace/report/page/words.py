"""Numbers as people write them."""

from __future__ import annotations

from collections.abc import Sequence

from ownpace.report.summary import Summary

NO_BREAK = "\N{NO-BREAK SPACE}"
"""Between a number and its unit."""


def duration(seconds: float) -> str:
    """A time.

    >>> " ".join(map(duration, (0.0512, 4.018, 75.2, 600, 90_000))).replace(NO_BREAK, " ")
    '51.2 ms 4.02 s 75.2 s 10.0 min 25.0 h'
    """
    for limit, unit, size in ((1e-3, "µs", 1e-6), (0.1, "ms", 1e-3), (120, "s", 1.0), (7200, "min", 60.0)):
        if seconds < limit:
            return f"{_three(seconds / size)}{NO_BREAK}{unit}"
    return f"{_three(seconds / 3600)}{NO_BREAK}h"


def _three(value: float) -> str:
    """Three digits that count, as far as there is a point."""
    return f"{value:.2f}" if 0 < value < 10 else f"{value:.1f}" if value < 1000 and value else f"{value:,.0f}"


def percent(share: float, digits: int = 0) -> str:
    """A share.

    >>> percent(0.953, 1).replace(NO_BREAK, " ")
    '95.3 %'
    """
    return f"{100 * share:.{digits}f}{NO_BREAK}%"


def count(number: float) -> str:
    """A number of things.

    >>> count(12345.6), count(3.25)
    ('12,346', '3.2')
    """
    return f"{number:.1f}" if number < 100 and number != int(number) else f"{number:,.0f}"


def listing(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listing(["sync", "pace", "abs"])
    'sync, pace and abs'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def goal(summary: Summary) -> str | None:
    """What a run was to reach; None: nothing."""
    if summary.target is not None:
        return percent(summary.target, 1)
    return None if summary.target_loss is None else f"a loss of {summary.target_loss:g}"
