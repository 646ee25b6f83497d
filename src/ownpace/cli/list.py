"""`ownpace list`: algorithms, tasks and fleets, with one line each."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ownpace.algorithms import ALGORITHMS
from ownpace.cli.help import HelpOption
from ownpace.core.settings import describe
from ownpace.fleet import PRESETS
from ownpace.tasks import TASKS, parameters_of


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
        }
        for name, cls in TASKS.items()
    }
    fleets = {
        name: {"about": about, "samples_per_s": [worker.machine.samples_per_s for worker in fleet.workers]}
        for name, (about, fleet) in PRESETS.items()
    }
    if as_json:
        typer.echo(json.dumps({"algorithms": algorithms, "tasks": tasks, "fleets": fleets}))
        return
    console = Console()
    table = Table("algorithm", "what it does", "parameters (-p NAME=VALUE)", title="Algorithms", title_justify="left")
    for name, known in algorithms.items():
        table.add_row(name, str(known["about"]), _parameters(known["parameters"]))
    console.print(table)
    table = Table("task", "what it is", "models", "parameters (-t …)", title="Tasks", title_justify="left")
    for name, task in tasks.items():
        table.add_row(name, str(task["about"]), ", ".join(task["models"]), _parameters(task["parameters"]))
    console.print(table)
    table = Table("fleet", "what it is", "samples/s", title="Fleets", title_justify="left")
    for name, preset in fleets.items():
        table.add_row(name, str(preset["about"]), " ".join(f"{pace:g}" for pace in preset["samples_per_s"]))
    console.print(table)
    console.print("A fleet can also be paces such as 4,2,1,1 (1 is 1000 samples/s), or a TOML file.")


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _parameters(known: object) -> str:
    assert isinstance(known, dict)
    return ", ".join(f"{name}={default}" for name, default in known.items())
