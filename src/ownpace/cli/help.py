"""`--help`, in lines that fit any terminal: names are never cut, and values never broken.

The help that comes with typer gives each kind of name a column of its own, which leaves 80 columns no room for text.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperArgument, TyperGroup, TyperOption

MOST_COLUMNS = 110
_LEFT = 24
"""Columns of the names, with the space around them; longer ones get a line of their own."""


def show_help(context: typer.Context, wanted: bool = True) -> None:
    """Print the help of a command and leave."""
    # Resilient parsing: a command line is only looked at, as for completion, and nothing may be printed.
    if not wanted or context.resilient_parsing:
        return
    console = Console(highlight=False, emoji=False)  # add:new:2 holds the name of one
    console.width = min(console.width, MOST_COLUMNS)
    command = context.command
    is_group = isinstance(command, TyperGroup)
    arguments = " COMMAND [ARGS]..." if is_group else "".join(f" {name}" for name in _arguments(command.params))
    console.print(f"Usage: {context.command_path} [OPTIONS]{arguments}", markup=False)
    for paragraph in (*inspect.cleandoc(command.help or "").split("\n\n"), command.epilog or ""):
        _paragraph(console, paragraph)
    panels: dict[str, list[tuple[str, str]]] = {}
    if isinstance(command, TyperGroup):
        panels["Commands"] = [(name, each.get_short_help_str(200)) for name, each in command.commands.items()]
    for option in command.params:
        if isinstance(option, TyperOption) and not option.hidden:
            panels.setdefault(option.rich_help_panel or "Other", []).append((_names(option), _about(option)))
    for heading, rows in panels.items():
        title(console, heading)
        for names, about in rows:
            row(console, names, about)
    raise typer.Exit


HelpOption = Annotated[
    bool, typer.Option("--help", is_eager=True, callback=show_help, help="Show this help.", show_default=False)
]
"""The option `--help` of a command."""


def _arguments(parameters: Iterable[object]) -> list[str]:
    """What a command takes without a name."""
    return [each.metavar or str(each.name).upper() for each in parameters if isinstance(each, TyperArgument)]


def _names(option: TyperOption) -> str:
    """All names, short ones first, and the value they take."""
    names = sorted(option.opts, key=len)
    if option.show_default == "on":
        names += option.secondary_opts
    is_switch = option.is_flag or option.count
    return ", ".join(names) + ("" if is_switch else f" {option.metavar or 'VALUE'}")


def _about(option: TyperOption) -> str:
    text = option.help or ""
    if option.multiple:
        text += " Repeatable."
    return f"{text} [default: {option.show_default}]" if isinstance(option.show_default, str) else text


def _paragraph(console: Console, text: str) -> None:
    """A paragraph, wrapped; a line that begins with spaces is a command, which stays whole so that it can be copied."""
    lines = text.splitlines() if text.startswith("  ") else _wrapped(" ".join(text.split()), console.width)
    if lines:
        # Wrapped already: rich would break commands and values in the middle.
        console.print("\n" + "\n".join(lines), markup=False, soft_wrap=True)


def title(console: Console, text: str) -> None:
    """A heading above rows."""
    console.print(Text("\n" + "\n".join(_wrapped(text, console.width)), style="bold"), soft_wrap=True)


def row(console: Console, names: str, *paragraphs: str) -> None:
    """A name and what there is to say about it, each paragraph on lines of its own."""
    left = f"  {names}"
    lines = [line for text in paragraphs for line in _wrapped(text, max(20, console.width - _LEFT))] or [""]
    if len(left) >= _LEFT:
        lines = ["", *lines]
    console.print(Text(left.ljust(_LEFT if lines[0] else 0), style="cyan") + Text(lines[0]), soft_wrap=True)
    for line in lines[1:]:
        console.print(Text(" " * _LEFT + line), soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
