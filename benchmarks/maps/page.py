"""The map as pictures and a page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from claims.filling import mean_s
from maps.advice import advice
from maps.cells import BATCH_SIZE, ENTRANTS, NOISE, NOISY, NUM_WORKERS, RATIOS, SUMS, Cell, cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found = Mapping[Cell, Mapping[str, Mapping[str, Any]]]
WORDS = Path(__file__).with_name("words.md")
COLOURS = dict(
    zip(
        ENTRANTS,
        (
            *("#4c9f70", "#d1495b", "#8e6cc9", "#00798c", "#3b7dd8", "#e8a33d", "#c06014", "#9aa0a6", "#6b7f4a"),
            *("#b35d9e", "#7a5c3e", "#5a6b8c", "#c9b458", "#3f4a59", "#a04848", "#4f8f8f", "#8c4f7f", "#777733"),
        ),
        strict=False,
    )
)
PAPERS: Mapping[str, tuple[tuple[str, tuple[str, ...], float], ...]] = {
    "Grouping-SGD": (
        ("grouping", ("sync-servers", "async", "stale"), 1.2),
        ("grouping-layers", ("sync", "async-layers", "stale"), 1.2),
    ),
    "ABS-SGD": (("abs", ("sync", "async", "stale"), 1.3),),
    "OD-SGD": (("od", ("sync", "async"), 1.0),),
    "Layered SGD": (("layered", ("sync",), 1.0),),
}
"""Paper → its algorithm, whom it is compared with, and how many times sooner it is said to be than the best of them."""


def order(cell: Mapping[str, Mapping[str, Any]]) -> list[tuple[float, str]]:
    """Who reached the target, the first one first."""
    return sorted((mean, label) for label, each in cell.items() if (mean := mean_s(each)) is not None)


def ahead(cell: Mapping[str, Mapping[str, Any]], label: str, rivals: tuple[str, ...]) -> float | None:
    """How many times sooner one is there than the best of its rivals; None if none of them is.

    Those that were cut off count as just there when they were: the ratio is then a bound.
    """
    times = {name: mean for mean, name in order(cell)}
    known = [times[rival] for rival in rivals if rival in times]
    if label not in times:
        return 0.0 if known else None
    return min(known) / times[label] if known else float("inf")


def telling(cell: Mapping[str, Any] | None) -> bool:
    """Whether so many are known in a cell that it can be said who is first: of a search that goes on, it cannot."""
    return cell is not None and len(set(ENTRANTS) & set(cell)) >= 0.75 * len(ENTRANTS)


def write(found: Found, folder: Path) -> None:
    """Draw a picture for each number of workers, and write map.md with all tables."""
    found = {cell: each for cell, each in found.items() if telling(each)}
    words = WORDS.read_text().replace("**How far it is.** HOW_FAR", textwrap.fill(how_far(found), 124))
    lines = [words.replace("ADVICE", "\n".join(advice(found))).rstrip(), ""]
    counts = [count for count in NUM_WORKERS if any(cell.num_workers == count for cell in found)]
    for count in counts:
        place = Path("..") / "images" / "map" / f"workers-{count}.png"
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(found, count, path)
        lines += [f"### {count} workers", "", f"![who is first with {count} workers]({place.as_posix()})", ""]
        lines += [*table(found, count, _first_three), ""]
    lines += ["## Where each paper's claim holds", ""]
    for paper, comparisons in PAPERS.items():
        lines += [f"### {paper}", ""]
        for label, rivals, bar in comparisons:
            names = ", ".join(f"`{rival}`" for rival in rivals)
            lines += [f"`{label}` over the best of {names}; **bold** from {bar:g} on.", ""]
            for count in counts:
                lines += table(found, count, lambda cell, who=label, over=rivals, at=bar: _ratio(cell, who, over, at))
                lines.append("")
    lines += ["## With more and with less noise", "", NOISE_WORDS, "", *noise(found)]
    (folder / "map.md").write_text("\n".join(lines) + "\n")


NOISE_WORDS = (
    "Batches of other sizes; sums take as long as beside batches of 32. `pace`, `acco` and `abs` have\n"
    "micro-batches of 8 in all of them, so nothing changes for these."
)


def how_far(found: Found) -> str:
    """How many cells there are, and which of them are not complete."""
    everywhere = cells()
    run = [cell for cell in everywhere if cell in found]
    missing = sum(not set(ENTRANTS) <= set(found[cell]) for cell in run)
    text = f"**How far it is.** {len(run)} of {len(everywhere)} cells have been run; the others are empty."
    return text + (f" In {missing} of them some algorithms are missing: those say of how many." if missing else "")


def table(found: Found, count: int, text: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """One row for each ratio of paces, one column for each length of a sum."""
    lines = ["| " + " | ".join([f"{count} workers", *(f"sum {sum_:g}" for sum_ in SUMS)]) + " |"]
    lines.append("|" + "---|" * (len(SUMS) + 1))
    for ratio in RATIOS:
        row = [found.get(Cell(count, ratio, sum_)) for sum_ in SUMS]
        lines.append("| " + " | ".join([f"paces 1 to {ratio}", *("" if c is None else text(c) for c in row)]) + " |")
    return lines


def noise(found: Found) -> list[str]:
    """Some cells with other batch sizes."""
    lines = ["| cell | " + " | ".join(f"batch size {size}" for size in NOISE) + " |", "|" + "---|" * (len(NOISE) + 1)]
    for count, ratio, sum_ in NOISY:
        row = [found.get(Cell(count, ratio, sum_, size)) for size in NOISE]
        texts = ["" if cell is None else _first_three(cell) for cell in row]
        lines.append(f"| {count} workers, paces 1 to {ratio}, sum {sum_:g} | " + " | ".join(texts) + " |")
    return lines


def _first_three(cell: Mapping[str, Mapping[str, Any]]) -> str:
    best = order(cell)
    if not best:
        return "nobody"
    first, *others = best[:3]
    behind = ", ".join(f"{label} {mean / first[0]:.2f}" for mean, label in others)
    of = "" if set(ENTRANTS) <= set(cell) else f" (of {len(set(ENTRANTS) & set(cell))})"
    return f"**{first[1]}** {first[0]:.3g} s; {behind}{of}"


def _ratio(cell: Mapping[str, Mapping[str, Any]], label: str, rivals: tuple[str, ...], bar: float) -> str:
    if not {label, *rivals} <= set(cell):
        return ""
    ratio = ahead(cell, label, rivals)
    if ratio is None:
        return "–"
    text = "never there" if ratio == 0 else "alone there" if ratio == float("inf") else f"{ratio:.2f}"
    return f"**{text}**" if ratio >= bar else text


def draw(found: Found, count: int, path: Path) -> None:
    """Who is first, in its colour: the paler, the closer the second."""
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    axis = figure.subplots()
    for row, ratio in enumerate(RATIOS):
        for column, sum_ in enumerate(SUMS):
            cell = found.get(Cell(count, ratio, sum_, BATCH_SIZE))
            best = [] if cell is None else order(cell)
            if best:
                _square(axis, column, row, best)
            else:
                text = "not run" if cell is None else "nobody"
                axis.text(column, row, text, ha="center", va="center", fontsize=8.5, color="#999999")
    axis.set_xlim(-0.5, len(SUMS) - 0.5)
    axis.set_ylim(-0.5, len(RATIOS) - 0.5)
    axis.set_xticks(range(len(SUMS)), [f"{sum_:g}" for sum_ in SUMS])
    axis.set_yticks(range(len(RATIOS)), [f"1 : {ratio}" for ratio in RATIOS])
    axis.set_xlabel("how long a sum of all gradients takes, in batches")
    axis.set_ylabel("slowest to fastest pace")
    axis.set_title(f"{count} workers: who is first at 95 %, and how many times sooner than the next")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    figure.savefig(path, dpi=150)


def _square(axis: Axes, column: int, row: int, best: list[tuple[float, str]]) -> None:
    from matplotlib.patches import Rectangle

    (first, label), *others = best
    lead = others[0][0] / first if others else 2.0
    strength = 0.35 + 0.65 * min(1.0, lead - 1.0)
    colour = tuple(1 - strength * (1 - channel) for channel in to_rgb(COLOURS[label]))
    axis.add_patch(Rectangle((column - 0.48, row - 0.47), 0.96, 0.94, facecolor=colour, edgecolor="none"))
    dark = "#ffffff" if strength > 0.7 else "#222222"
    axis.text(column, row + 0.13, label, ha="center", va="center", fontsize=11, fontweight="bold", color=dark)
    second = f"{lead:.2f} × {others[0][1]}" if others else "alone"
    axis.text(column, row - 0.17, second, ha="center", va="center", fontsize=8.5, color=dark)
