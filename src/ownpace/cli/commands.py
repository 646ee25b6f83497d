"""The commands by name. A command's module is imported when the command is used, so that `--help` comes at once.

To add a command, write its file and add a line here; its module imports torch, and what needs it, inside functions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer.core import TyperCommand

COMMANDS = {
    "train": ("ownpace.cli.train:train", "Train one model with one algorithm on one fleet."),
    "compare": (
        "ownpace.cli.compare:compare",
        "Compare algorithms on the same fleet, task and seeds: a table and a figure.",
    ),
    "measure": (
        "ownpace.cli.measure:measure",
        "Measure how fast these machines are with a task, and write a fleet file.",
    ),
    "plan": (
        "ownpace.cli.plan:plan",
        "Say which algorithm to take on your machines, at which learning rate, and what would help.",
    ),
    "show": (
        "ownpace.cli.status:show",
        "Show where a run stands: how far it came, which checkpoints are whole, and how to go on.",
    ),
    "report": (
        "ownpace.cli.report:report",
        "Show runs as one HTML page that needs no network: curves, where the time went, timelines, settings.",
    ),
    "watch": (
        "ownpace.cli.watch:watch",
        "Follow a run until it ends: how far it is, how it learns, how busy its workers are.",
    ),
    "runs": ("ownpace.cli.runs:runs", "List runs, the latest last: what was run, how well it did, how it ended."),
    "list": ("ownpace.cli.list:list_", "List algorithms, tasks and fleets, with one line each."),
}
"""Name → where its function is, and the first line of that function's help."""


class Commands(TyperGroup):
    """The commands, each loaded when it is asked for."""

    # The context is click's, which some versions of typer bring with them under a name of their own.
    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | None:
        """The command of that name, if there is one."""
        return _load(cmd_name) if cmd_name in COMMANDS else None


def register_all(app: typer.Typer) -> None:
    """Let an app know the name and the first line of each command: `--help` and suggestions need no more."""
    for name, (_, about) in COMMANDS.items():
        app.command(name, short_help=about)(_stand_in)


def _stand_in() -> None:
    raise AssertionError("a command was called that has not been loaded")


def _load(name: str) -> TyperCommand:
    module, _, function = COMMANDS[name][0].partition(":")
    # An app of its own makes a command of the function; with a single one, that is not a group.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, add_help_option=False)(getattr(importlib.import_module(module), function))
    command: TyperCommand = typer.main.get_command(app)  # type: ignore[assignment]
    return command
