"""Summaries as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from rich import box
from rich.table import Table
from rich.text import Text

from ownpace.report.summary import Summary


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """One row per algorithm, in the order given; several seeds of one are averaged.

    Where there are runs of both engines, those in virtual time are called what they are: predictions.
    """
    runs: dict[tuple[str, str], list[Summary]] = {}
    for summary in summaries:
        runs.setdefault((summary.algorithm, summary.engine), []).append(summary)
    both = len({summary.engine for summary in summaries}) > 1
    target = summaries[0].target
    fastest = min((mean for group in runs.values() if (mean := _mean_time(group)) is not None), default=None)

    early = any(summary.reason != "finished" for summary in summaries)

    num_seeds = max(len(group) for group in runs.values())
    title = f"mean of {num_seeds} seeds" if num_seeds > 1 else None
    padding = (0, 0 if early else 1, 0, 0)  # all columns together are close to 80
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=padding, show_edge=False)
    table.add_column("algorithm", no_wrap=True)
    if target is not None:
        table.add_column(f"time to\n{target:.1%}", justify="right", no_wrap=True)
    for head in ("samples/s", "of\nlimit", "busy (%)", "staleness", "accuracy"):
        table.add_column(head, justify="right", no_wrap=head != "busy (%)")  # of many workers, it may take two lines
    if early:
        table.add_column("ended", no_wrap=True)
    for (name, engine), group in runs.items():
        time = _mean_time(group)
        cells: list[str | Text] = [Text("predicted", style="dim") if both and engine == "virtual" else name]
        if target is not None:
            reached = "not reached" if time is None else f"{time:.2f} s"
            cells.append(Text(reached, style="bold green" if time is not None and time == fastest else ""))
        cells += [
            f"{_mean(group, lambda s: s.samples_per_s):,.0f}",
            f"{_mean(group, lambda s: s.share_of_limit):.0%}",
            _busy(group),
            f"{_mean(group, lambda s: s.staleness.mean):.1f}, ≤ {max(s.staleness.max for s in group)}",
            _accuracy(group),
        ]
        table.add_row(*cells, *([_ended(group)] if early else []))
    return table


def _mean(group: Sequence[Summary], of: Callable[[Summary], float]) -> float:
    return fmean(of(summary) for summary in group)


def _mean_time(group: Sequence[Summary]) -> float | None:
    # A mean over the seeds that got there would hide the one that did not.
    times = [summary.time_to_target for summary in group]
    return None if None in times else fmean(time for time in times if time is not None)


def _accuracy(group: Sequence[Summary]) -> str:
    known = [summary.accuracy for summary in group if summary.accuracy is not None]
    return f"{fmean(known):.1%}" if known else "–"


def _busy(group: Sequence[Summary], most: int = 8) -> str:
    names = list(group[0].busy)
    shares = [fmean(summary.busy[name] for summary in group) for name in names]
    if len(shares) > most:
        return f"{min(shares):.0%} to {max(shares):.0%}"
    texts = [f"{100 * share:.0f}" for share in shares]
    return f"{texts[0]} each" if len(texts) > 1 and len(set(texts)) == 1 else " ".join(texts)


def _ended(group: Sequence[Summary]) -> str:
    early = [summary for summary in group if summary.reason != "finished"]
    if not early:
        return "finished"
    return (early[0].code or "early").replace("-", " ")  # files from before there were codes have none
