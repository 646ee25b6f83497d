"""`ownpace measure`: how fast the machines are with a task, as a fleet file."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ownpace.cli import options
from ownpace.cli.logs import show_logs
from ownpace.run.config import Config
from ownpace.run.help import RUN, WRITE

if TYPE_CHECKING:
    from ownpace.measuring import Measured

_TAKEN = (
    *("task", "task_parameters", "model", "device", "precision", "cuda_graphs"),
    *("batch_size", "optimizer", "momentum", "nesterov", "weight_decay"),
)
"""The fields of a run's description that decide how long its parts take."""
Out = Annotated[
    Path | None,
    typer.Option(help="The fleet file to write (default: none).", metavar="FILE.toml", rich_help_panel=WRITE),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file --out names.", rich_help_panel=WRITE)]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes of this machine, all at once (default: 1; under torchrun, its own).",
        metavar="N",
        rich_help_panel=RUN,
    ),
]
Seconds = Annotated[
    float, typer.Option(help="How long to measure, about.", metavar="X", rich_help_panel=RUN, show_default="20")
]


@options.with_run_options(*(field.name for field in fields(Config) if field.name not in _TAKEN))
def measure(
    *,
    given: options.Given,
    workers: Workers = None,
    seconds: Seconds = 20.0,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
) -> None:
    """Measure how fast these machines are with a task, and write a fleet file.

    All machines compute at the same time, as in training. On one machine; on all of yours:

      ownpace measure --task digits --out fleet.toml
      torchrun --nproc-per-node 4 -m ownpace measure --out fleet.toml

    Then `ownpace plan --fleet fleet.toml` says which algorithm to take.
    """
    from ownpace.engines import is_main_process
    from ownpace.measuring import measure_config

    show_logs(verbose)
    config = given.config(None)
    console = Console(stderr=True)
    if not is_main_process():
        measure_config(config, workers=workers, seconds=seconds)
        return
    status = console.status("reading data")  # which is not shown where nothing moves

    def on_start() -> None:
        said = f"measuring for about {seconds:g} s …"
        status.update(said)
        if not console.is_interactive:
            console.print(said, highlight=False)

    with status:
        found = measure_config(
            config, workers=workers, seconds=seconds, out=out, overwrite=overwrite, on_start=on_start
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict() | {"fleet_file": None if out is None else str(out)}))
    else:
        _show(found, out)


def _show(found: Measured, out: Path | None) -> None:
    from ownpace.measuring.words import lines, table

    shown = Console()
    shown.print(table(found))
    for line in lines(found):
        shown.print(line, markup=False, highlight=False)
    if out is not None:
        shown.print(f"fleet in {out}", markup=False)
