"""One colour for each algorithm, the same in every figure and page, and one for each thing that a worker does.

The first eight can be told apart with any common colour blindness too; of 21 that is too much to ask. All of them are
seen on white and on black.
"""

from __future__ import annotations

import zlib

ACTIVITIES = {"compute": "#3b7dd8", "load": "#8e6cc9", "wait": "#e8e8e8", "transfer": "#e07b39"}
OF_ALGORITHMS = {
    "sync": "#5c5c60",
    "pace": "#1048fa",
    "balanced": "#b66b3d",
    "stride": "#50ae90",
    "async": "#d3119b",
    "diloco": "#a18afe",
    "abs": "#af1d08",
    "local": "#bb9c01",
    "acco": "#1b7ac6",
    "pipe": "#769ac4",
    "od": "#6675fe",
    "layered": "#663bc8",
    "grouping": "#f97477",
    "stale": "#bc0a56",
    "dc-async": "#b7687f",
    "staleness-aware": "#c442d6",
    "backup": "#0a6c8c",
    "cocod": "#8b9e5d",
    "overlap-local": "#08692d",
    "wp": "#ff61d3",
    "simuparallel": "#a84fb3",
}
SPARE = ("#b60880", "#088c09", "#8c28ac", "#388f52", "#ff69ab", "#f93801", "#bf3779", "#d160a3")
"""For algorithms of the user's own."""


def colour_of(algorithm: str) -> str:
    """The colour of an algorithm; of one that is not ours, always the same one for the same name.

    >>> colour_of("pace"), colour_of("Patient") == colour_of("Patient")
    ('#1048fa', True)
    """
    # Not `hash`, which differs from one Python process to the next.
    return OF_ALGORITHMS.get(algorithm) or SPARE[zlib.crc32(algorithm.encode(errors="replace")) % len(SPARE)]
