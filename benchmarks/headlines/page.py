"""docs/results/headlines.md out of what was found."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from claims.filling import Kept, mean_s
from headlines import nets
from headlines.places import Headline, places

Found = Mapping[Headline, Kept]
WORDS = Path(__file__).with_name("words")
"""What people have to say about the numbers, one file for each section."""
SECTIONS: Mapping[str, Sequence[str]] = {
    "grouping": ("grouping",),
    "wp": ("wp",),
    "od": ("od",),
    "layered": ("layered",),
    "abs": ("abs",),
    "small": ("abs, small batches",),
    "resnet": ("abs, ResNets",),
}
PARTS = (", small batches", ", ours")
"""Of comparisons that are shown with others beside them."""


def write(found: Found, folder: Path) -> None:
    """The page; what was not run is left out, and said to be."""
    parts = [_words("head"), how_far(found)]
    for section, papers in SECTIONS.items():
        chosen = {
            place: with_siblings(place, found) for place in places() if place.paper in papers and found.get(place)
        }
        if not chosen:
            continue
        tables = [wp_table(chosen)] if section == "wp" else [one_table(*each) for each in chosen.items()]
        lines = [_words(section), *("\n".join(rows).rstrip() for rows in tables)]
        if section in ("abs", "small", "resnet"):
            lines += averages(found, papers[0])
        parts += lines
    (folder / "headlines.md").write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def with_siblings(place: Headline, found: Found) -> Kept:
    """What was found; beside rivals with small batches, the paper's comparison in the same place, and the reverse."""
    papers = [place.paper, *(place.paper.removesuffix(part) for part in PARTS), f"{place.paper}, ours"]
    found_here = [found.get(replace(place, paper=paper), {}) for paper in dict.fromkeys(papers)]
    return {label: each for kept in reversed(found_here) for label, each in kept.items()}


def how_far(found: Found) -> str:
    """Whether something is missing."""
    missing = sum(label not in found.get(place, {}) for place in places() for label in place.labels())
    total = sum(len(place.labels()) for place in places())
    if not missing:
        return ""
    return (
        f"**How far it is.** {total - missing} of {total} searches have been made; what is not shown has not been run."
    )


def name_of(place: Headline) -> str:
    """For people to read."""
    momentum = f"momentum {place.momentum:g}" if place.momentum else "no momentum"
    return f"{place.fleet}; {nets.NAMES[place.model]}; {momentum}"


def one_table(place: Headline, found: Kept) -> list[str]:
    """Times, or final accuracies."""
    lines = final_table(place, found) if place.final else race(place, found)
    return [*lines, "", *summary(place, found)]


def summary(place: Headline, found: Kept) -> list[str]:
    """What the headline is about, in one line."""
    parts = []
    if place.paper == "grouping":
        for ours, rivals in (
            ("grouping", ("sync-servers", "async", "stale")),
            ("grouping-layers", ("sync", "async-layers")),
        ):
            ratios = [f"{ratio:.2f} over `{rival}`" for rival in rivals if (ratio := lead(found, ours, [rival]))]
            parts += [f"`{ours}` {', '.join(ratios)}"] if ratios else []
    if place.paper == "od" and {"sync-servers", "async"} <= set(found):
        for ours in (label for label in found if label.startswith("od")):
            speeds = [
                found[ours]["samples_per_s"] / found[rival]["samples_per_s"] for rival in ("sync-servers", "async")
            ]
            means = [100 * statistics.mean(found[who]["finals"]) for who in (ours, "sync-servers")]
            parts.append(
                f"`{ours}` {speeds[0]:.2f} times the samples/s of `sync-servers`, {speeds[1]:.2f} of `async`, "
                f"{means[0] - means[1]:+.2f} points of accuracy"
            )
    return [textwrap.fill(f"**{'; '.join(parts)}.**", 124, break_on_hyphens=False)] if parts else []


def race(place: Headline, found: Kept) -> list[str]:
    """Who is how soon there, and how many times later than the paper's algorithm."""
    ours = place.paper.partition(",")[0]
    mine = mean_s(found[ours]) if ours in found else None
    rows = []
    for label, each in sorted(found.items(), key=lambda item: mean_s(item[1]) or float("inf")):
        mean = mean_s(each)
        times = [second for second in each["seconds"] if second is not None]
        over = f"{mean / mine:.2f}" if mean is not None and mine is not None else "–"
        rows.append((f"`{label}`", f"{each['lr']:.3g}", spread(times) if mean else "–", over, *_rates(each)))
    heads = (name_of(place), "lr", "seconds", f"over `{ours}`", "samples/s", "updates/s")
    return table(heads, rows)


def final_table(place: Headline, found: Kept) -> list[str]:
    """How good each gets, and in what time."""
    rows = []
    for label, each in found.items():
        accuracy = spread([100 * final for final in each["finals"]], digits=2) + " %"
        rows.append((f"`{label}`", f"{each['lr']:.3g}", accuracy, f"{each['seconds']:.3g}", *_rates(each)))
    return table((name_of(place), "lr", "final accuracy", "seconds", "samples/s", "updates/s"), rows)


def wp_table(found: Found) -> list[str]:
    """Objectives of each rule."""
    rules = ("exp", "equal", "count", "optimal")
    rows = []
    for place, kept in found.items():
        values = {rule: kept[rule]["objectives"] for rule in rules if rule in kept}
        cells = [_objective(values.get(rule)) for rule in rules]
        lower = {rule: _pairs(values, rule) for rule in ("exp", "count")}
        rows.append((place.fleet.removeprefix("T = "), *cells, lower["exp"], lower["count"]))
    heads = (
        "T",
        "`exp`",
        "`equal` (SimuParallel)",
        "`count`",
        "`optimal`",
        "`exp` below `equal`",
        "`count` below `exp`",
    )
    return table(heads, rows)


def _objective(values: Sequence[float] | None) -> str:
    return "" if not values else f"{statistics.mean(values):.5f} ± {statistics.stdev(values):.5f}"


def _pairs(values: Mapping[str, Sequence[float]], rule: str) -> str:
    """Of how many seeds: both runs of a seed take the same samples, so that their difference says more than means."""
    other = {"exp": "equal", "count": "exp"}[rule]
    if rule not in values or other not in values:
        return ""
    pairs = list(zip(values[rule], values[other], strict=True))
    return f"{sum(a < b for a, b in pairs)} of {len(pairs)} seeds"


def averages(found: Found, paper: str) -> list[str]:
    """ABS-SGD's lead over the best of the paper's rivals, on average over the three clusters."""
    lines = []
    kinds = {(place.model, place.momentum): None for place in places() if place.paper == paper}
    for model, momentum in kinds:
        rivals = ("sync", "async", "sync-8", "async-8", "stale-8") if "small" in paper else ("sync", "async", "stale")
        chosen = [p for p in places() if (p.paper, p.model, p.momentum) == (paper, model, momentum)]
        leads = [lead(with_siblings(place, found), "abs", rivals) for place in chosen if found.get(place)]
        known = [each for each in leads if each is not None]
        if known and len(known) == len(chosen):
            each = ", ".join(f"{value:.2f}" for value in known)
            what = f"`abs` over the best of {', '.join(rivals)}; {nets.NAMES[model]}, momentum {momentum:g}"
            line = f"**{what}: {each}; on average {statistics.mean(known):.2f}.**"
            lines.append(textwrap.fill(line, 124, break_on_hyphens=False))
    return lines


def lead(found: Kept, ours: str, rivals: Sequence[str]) -> float | None:
    """How many times sooner ours is there than the best of these; 0 if never, None if somebody is not known."""
    if not {ours, *rivals} <= set(found):
        return None
    mine, times = mean_s(found[ours]), [t for rival in rivals if (t := mean_s(found[rival])) is not None]
    if mine is None:
        return 0.0
    return min(times) / mine if times else None


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """The mean, and the standard deviation over seeds where there are several."""
    mean = statistics.mean(values)
    text = f"{mean:.3g}" if digits is None else f"{mean:.{digits}f}"
    if len(values) < 2:
        return f"{text} (one seed)"
    return f"{text} ± {statistics.stdev(values):.2g}" + (" (two seeds)" if len(values) == 2 else "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """As Markdown."""
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {' | '.join(row)} |" for row in rows)]


def _rates(found: Mapping[str, Any]) -> tuple[str, str]:
    return f"{found['samples_per_s']:,.0f}", f"{found['updates_per_s']:.1f}"


def _words(name: str) -> str:
    path = WORDS / f"{name}.md"
    return path.read_text(encoding="utf-8").rstrip() if path.exists() else ""
