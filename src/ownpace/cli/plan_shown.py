"""A plan for people to read: the verdict, the ranking, what is uncertain, and the command."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ownpace.planning import Plan, Ranked
from ownpace.planning.words import seconds_text, target_text

MOST_COLUMNS = 110


def show_plan(plan: Plan, console: Console) -> None:
    """Print all of it, in lines that fit the terminal."""
    console.width = min(console.width, MOST_COLUMNS)
    first, *rest = plan.verdict.splitlines()
    console.print(Text(first, style="bold"))
    for line in rest:
        _point(console, line)
    console.print()
    console.print(ranking_table(plan))
    for title, lines in (("Uncertain", plan.uncertain), ("Not tried", _left_out(plan))):
        if lines:
            console.print(f"\n{title}:", highlight=False)
        for line in lines:
            _point(console, line)
    console.print("\nTo run it on the model of the fleet (on the machines: torchrun … -m, without --fleet):")
    # Not wrapped, so that it can be copied.
    console.print(f"  {plan.choice.command}", markup=False, highlight=False, soft_wrap=True)


def ranking_table(plan: Plan) -> Table:
    """One row for each algorithm, the first first."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("algorithm", no_wrap=True)
    learnt = not plan.timing_only
    if learnt:
        table.add_column("lr", justify="right", no_wrap=True)
        table.add_column(f"time to\n{target_text(plan.target)}", justify="right", no_wrap=True)
    for head in ("samples\n/s", "updates\n/s", "samples\n/update", "of\nlimit", "net\nbusy"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in plan.ranking:
        chosen = row.algorithm == plan.choice.algorithm
        cells = [row.algorithm, *([_lr(row), _time(row)] if learnt else []), *_speeds(row)]
        table.add_row(*cells, style="bold" if chosen else "")
    return table


def _lr(row: Ranked) -> str:
    return "–" if row.lr is None else f"{row.lr:.3g}"


def _time(row: Ranked) -> str:
    if row.time_to_target is None:
        return "–" if row.at_most_s is None else f"> {seconds_text(row.at_most_s)}"
    if row.spread is None:
        return seconds_text(row.time_to_target)
    return f"{row.time_to_target:.3g} ± {row.spread:.1g} s"


def _speeds(row: Ranked) -> list[str]:
    use = row.timing.network_use
    return [
        f"{row.samples_per_s:,.0f}",
        f"{row.updates_per_s:,.3g}",
        f"{row.samples_per_update:,.0f}",
        f"{row.share_of_limit:.0%}",
        "–" if use is None else f"{use:.0%}",
    ]


def _left_out(plan: Plan) -> list[str]:
    """Who was not tried, those with the same reason together."""
    names: dict[str, list[str]] = {}
    for name, why in plan.left_out.items():
        names.setdefault(why, []).append(name)
    return [f"{', '.join(each)}: {why}" for why, each in names.items()]


def _point(console: Console, line: str) -> None:
    console.print(Padding(Text(f"- {line}", overflow="fold"), (0, 0, 0, 0)), highlight=False)
