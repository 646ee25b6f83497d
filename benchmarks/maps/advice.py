"""Which algorithm to take, out of the map: the one that is never far behind whoever is first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from claims.filling import mean_s
from maps.cells import ENTRANTS, NUM_WORKERS, RATIOS, Cell

Found = Mapping[Cell, Mapping[str, Mapping[str, Any]]]
ROWS: Mapping[str, tuple[float, ...]] = {
    "up to a third of a batch": (0.03, 0.1, 0.3),
    "a batch": (1.0,),
    "three batches": (3.0,),
    "ten batches": (10.0,),
}
"""How long a sum takes → which columns of the map that is."""
FLEETS: Mapping[str, tuple[float, ...]] = {"equal": (1,), "unequal": RATIOS[1:]}
CLOSE = 1.1
"""Who is so near to the least is named, too: three seeds do not tell them apart."""


def lags(found: Found, count: int, ratios: tuple[float, ...], sums: tuple[float, ...]) -> dict[str, float]:
    """Of everybody who was run in all these cells, how many times later it is than the first, where that is most."""
    cells = [found[cell] for ratio in ratios for sum_ in sums if (cell := Cell(count, ratio, sum_)) in found]
    worst: dict[str, float] = {}
    for label in ENTRANTS:
        if cells and all(label in cell for cell in cells):
            worst[label] = max(lag(cell, label) for cell in cells)
    return worst


def lag(cell: Mapping[str, Mapping[str, Any]], label: str) -> float:
    """How many times later than the first one is there; infinite if it never is."""
    times = {name: mean for name, each in cell.items() if (mean := mean_s(each)) is not None}
    return times[label] / min(times.values()) if label in times else float("inf")


def advice(found: Found) -> list[str]:
    """A row for each length of a sum, a column for each number of workers."""
    lines = ["| a sum takes | machines | " + " | ".join(f"{count} workers" for count in NUM_WORKERS) + " |"]
    lines.append("|" + "---|" * (len(NUM_WORKERS) + 2))
    for name, sums in ROWS.items():
        for kind, ratios in FLEETS.items():
            texts = [_named(lags(found, count, ratios, sums)) for count in NUM_WORKERS]
            lines.append(f"| {name} | {kind} | " + " | ".join(texts) + " |")
    return lines


def _named(worst: Mapping[str, float]) -> str:
    """The least lag, and who is close to it."""
    least = min(worst.values(), default=float("inf"))
    if least == float("inf"):
        return ""
    first, *others = sorted((value, label) for label, value in worst.items() if value <= CLOSE * least)
    beside = "".join(f", {label} {value:.2f}" for value, label in others[:2])
    return f"**{first[1]}** {first[0]:.2f}{beside}"
