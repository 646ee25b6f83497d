"""A plan for people to read: the verdict, the ranking, what is uncertain, and the command."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from ownpace.planning import Plan, Ranked
from ownpace.planning.words import seconds_text, target_text

MOST_COLUMNS = 110


def show_plan(plan: Plan, console: Console) -> None:
    """Print all of it, in lines that fit the terminal."""
    width = min(console.width, MOST_COLUMNS)
    first, *rest = plan.verdict.splitlines()
    _print(console, textwrap.fill(first, width), style="bold")
    _points(console, rest, width)
    console.print()
    console.print(ranking_table(plan), width=width)
    if plan.uncertain:
        _print(console, "\nWhat is uncertain:")
        _points(console, plan.uncertain, width)
    if plan.left_out:
        _print(console, "\n" + textwrap.fill(f"Not tried, unless --algorithms names them: {_left_out(plan)}.", width))
    _print(console, "\nTo run it on this model of the fleet, or with torchrun on the real machines:")
    # Not wrapped, so that it can be copied.
    _print(console, f"  {plan.choice.command}\n  {on_machines(plan.choice.command)}")


def on_machines(command: str) -> str:
    """The same command for real machines, which have the paces that they have."""
    words = shlex.split(command)
    at = words.index("--fleet")
    return "torchrun … -m " + shlex.join([*words[:at], *words[at + 2 :]])


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


def _left_out(plan: Plan) -> str:
    """Who was not tried, those with the same reason together."""
    names: dict[str, list[str]] = {}
    for name, why in plan.left_out.items():
        names.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(each)} ({why})" for why, each in names.items())


def _points(console: Console, lines: Iterable[str], width: int) -> None:
    for line in lines:
        _print(console, textwrap.fill(line, width, initial_indent="- ", subsequent_indent="  "))


def _print(console: Console, text: str, style: str | None = None) -> None:
    """As it is: wrapped already, and nothing of it means anything to rich."""
    console.print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)
