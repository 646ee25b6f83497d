"""`ownpace list`: algorithms, tasks and fleets, with one line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ownpace.algorithms import ALGORITHMS
from ownpace.cli.help import HelpOption, row, title
from ownpace.core.settings import describe
from ownpace.fleet import PRESETS, Fleet
from ownpace.tasks import TASKS, parameters_of

if TYPE_CHECKING:
    from ownpace.core.learning.defaults import Defaults


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    help_: HelpOption = False,
) -> None:
    """List algorithms, tasks and fleets, with one line each."""
    algorithms = {name: {"about": _first_line(cls), "parameters": describe(cls)} for name, cls in ALGORITHMS.items()}
    tasks = {
        name: {
            "about": _first_line(cls),
            "models": list(cls.models),
            "parameters": parameters_of(cls),
            "defaults": asdict(cls.defaults),
        }
        for name, cls in TASKS.items()
    }
    fleets = {name: {"about": about, "samples_per_s": _paces(fleet)} for name, (about, fleet) in PRESETS.items()}
    if as_json:
        typer.echo(json.dumps({"algorithms": algorithms, "tasks": tasks, "fleets": fleets}))
        return
    console = Console(highlight=False)
    title(console, "Algorithms (--algorithm, parameters by -p NAME=VALUE)")
    for name, cls in ALGORITHMS.items():
        row(console, name, _first_line(cls), _parameters(describe(cls)))
    title(console, "Tasks (--task, models by --model, parameters by -t NAME=VALUE)")
    for name, task in TASKS.items():
        models, usual = f"models: {', '.join(task.models)}", f"defaults: {_usual(task.defaults)}"
        row(console, name, _first_line(task), models, _parameters(parameters_of(task)), usual)
    title(console, "Fleets (--fleet)")
    for name, (about, fleet) in PRESETS.items():
        row(console, name, about, f"samples/s: {' '.join(f'{each:g}' for each in _paces(fleet))}")
    row(console, "4,2,1,1", "relative paces; 1 is 1000 samples/s")
    row(console, "FILE.toml", "machines and networks of your own; `ownpace measure` writes such a file")


def _paces(fleet: Fleet) -> list[float]:
    return [worker.machine.samples_per_s or 0.0 for worker in fleet.workers]


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _usual(defaults: Defaults) -> str:
    """How a task is learnt if nothing else is said."""
    parts = [f"lr {defaults.lr:g}"]
    if defaults.momentum:
        parts.append(f"momentum {defaults.momentum:g}")
    if defaults.schedule != "constant":
        parts.append(defaults.schedule)
    parts.append(f"{defaults.epochs:g} epochs")
    if defaults.target is not None:
        parts.append(f"to {defaults.target:.0%}")
    if defaults.target_loss is not None:
        parts.append(f"to a loss of {defaults.target_loss:g}")
    return ", ".join(parts)


def _parameters(known: Mapping[str, str]) -> str:
    return f"parameters: {', '.join(f'{name}={default}' for name, default in known.items()) or 'none'}"
