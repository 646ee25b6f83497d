"""Summaries as a table for people. It fits the width there is: what matters least gives way, and nothing is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich import box
from rich.table import Table
from rich.text import Text

from ownpace.report.groups import RunGroup, fastest, grouped
from ownpace.report.summary import Summary

MOST_SHOWN = 8
"""Of workers, one by one."""
_NARROW = 80


@dataclass(frozen=True)
class _Column:
    head: str
    cells: list[str]
    weight: int
    """The column of the smallest weight is the first to give way."""

    @property
    def width(self) -> int:
        return max(len(line) for cell in (self.head, *self.cells) for line in cell.split("\n"))


def comparison_table(summaries: Sequence[Summary], width: int = _NARROW) -> Table:
    """One row per algorithm, in the order given; several seeds of one are averaged.

    Where there are runs of both engines, those in virtual time are called what they are: predictions.
    """
    groups = grouped(summaries)
    columns, left_out = _fitting(_columns(groups), width)
    num_seeds = max(len(group.runs) for group in groups)
    title = f"mean ± standard deviation of {num_seeds} seeds" if num_seeds > 1 else None
    caption = f"no room for: {', '.join(left_out)}" if left_out else None
    table = Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for column in columns:
        is_word = column.head in ("algorithm", "ended")
        # A name that is wider than all there is goes on in the next line.
        table.add_column(column.head, justify="left" if is_word else "right", overflow="fold")
    first = fastest(groups)
    for row, group in enumerate(groups):
        best = "bold green" if group is first else ""
        table.add_row(
            *(
                Text(column.cells[row], style=best if column.head.startswith("time to") else _style(column.cells[row]))
                for column in columns
            )
        )
    return table


def _style(cell: str) -> str:
    return "dim" if cell == "predicted" else ""


def _columns(groups: Sequence[RunGroup]) -> list[_Column]:
    """All that could be shown, from left to right."""
    summary = groups[0].runs[0]
    both = len({group.engine for group in groups}) > 1
    early = any(run.reason != "finished" for group in groups for run in group.runs)
    by_loss = summary.target_loss is not None or all(run.accuracy is None for group in groups for run in group.runs)
    goal = f"loss {summary.target_loss:g}" if summary.target_loss is not None else f"{summary.target or 0:.1%}"
    predicted = [both and group.engine == "virtual" for group in groups]
    known = [
        _Column("algorithm", ["predicted" if p else g.algorithm for p, g in zip(predicted, groups, strict=True)], 99),
        _Column(f"time to\n{goal}", [_time(group) for group in groups], 90),
        _Column("samples/s", [_mean(group, "samples_per_s", ",.0f") for group in groups], 70),
        _Column("of\nlimit", [_mean(group, "share_of_limit", ".0%") for group in groups], 60),
        _Column("updates", [_mean(group, "updates", ",.0f") for group in groups], 50),
        _Column("samples/\nupdate", [f"{fmean(r.update_samples.mean for r in g.runs):,.0f}" for g in groups], 40),
        _Column("busy (%)", [_busy(group) for group in groups], 20),
        _Column("stale-\nness", [_staleness(group) for group in groups], 30),
        _Column("loss", [_score(group, "loss", ".3g") for group in groups], 80 if by_loss else 10),
        _Column("accuracy", [_score(group, "accuracy", ".1%") for group in groups], 5 if by_loss else 80),
        _Column("ended", [_ended(group) for group in groups], 75),
    ]
    unwanted = set() if early else {"ended"}
    if summary.target is None and summary.target_loss is None:
        unwanted.add(f"time to\n{goal}")
    if all(run.accuracy is None for group in groups for run in group.runs):
        unwanted.add("accuracy")
    if not any(group.spread(lambda run: run.loss) for group in groups):
        unwanted.add("loss")  # of a run that was only simulated
    return [column for column in known if column.head not in unwanted]


def _fitting(columns: list[_Column], width: int) -> tuple[list[_Column], list[str]]:
    """The columns that fit into the width, and the names of those that do not."""
    kept, left_out = list(columns), []
    while sum(column.width + 2 for column in kept) > width and len(kept) > 1:
        least = min(kept, key=lambda column: column.weight)
        kept.remove(least)
        left_out.append(least.head.replace("-\n", "").replace("/\n", "/").replace("\n", " "))
    return kept, left_out


def _mean(group: RunGroup, name: str, spec: str) -> str:
    return f"{fmean(getattr(run, name) for run in group.runs):{spec}}"


def _time(group: RunGroup) -> str:
    spread = group.time_to_target
    if spread is not None:
        return spread.shown(".2f", " s")
    reached = sum(run.time_to_target is not None for run in group.runs)
    return f"{reached} of {len(group.runs)} seeds" if reached else "not reached"


def _score(group: RunGroup, name: str, spec: str) -> str:
    spread = group.spread(lambda run: getattr(run, name))
    return "–" if spread is None else spread.shown(spec)


def _staleness(group: RunGroup) -> str:
    return f"{fmean(run.staleness.mean for run in group.runs):.1f}, ≤ {max(run.staleness.max for run in group.runs)}"


def _busy(group: RunGroup) -> str:
    shares = [fmean(run.busy[name] for run in group.runs) for name in group.runs[0].busy]
    if len(shares) > MOST_SHOWN:
        return f"{min(shares):.0%} to {max(shares):.0%}"
    texts = [f"{100 * share:.0f}" for share in shares]
    return f"{texts[0]} each" if len(texts) > 1 and len(set(texts)) == 1 else " ".join(texts)


def _ended(group: RunGroup) -> str:
    early = [run for run in group.runs if run.reason != "finished"]
    if not early:
        return "finished"
    return (early[0].code or "early").replace("-", " ")  # files from before there were codes have none
