"""`ownpace train`: one algorithm on one fleet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import typer
from rich.console import Console

from ownpace.cli import options
from ownpace.cli.logs import show_logs
from ownpace.cli.progress import Live
from ownpace.cli.show import draw
from ownpace.core.contract.errors import InputError
from ownpace.engines import is_main_process, num_ranks
from ownpace.report.outline import RunOutline
from ownpace.report.table import comparison_table
from ownpace.run import Result, execute
from ownpace.run.names import label
from ownpace.run.place import FIGURE


@options.with_run_options()
def train(
    *,
    config: options.ConfigFile = None,
    given: options.Given,
    insecure: options.Insecure = False,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
) -> None:
    """Train one model with one algorithm on one fleet.

    For example, and then the same with another learning rate:

      ownpace train --algorithm balanced --fleet 4,2,1,1 --out runs/first
      ownpace train --config runs/first/config.json --lr 0.1

    Results go into a folder: config.json, events.jsonl, model.safetensors, summary.json, figure.png.
    """
    show_logs(verbose)
    if insecure:  # of this start, not of the run: no configuration file should say it
        os.environ["OWNPACE_INSECURE"] = "1"
    described = given.config(config)
    name = label(described.algorithm)
    folder = options.folder_for(out, name, label(described.task))
    # Otherwise each process would make up a folder: its name has the time at which it was asked for.
    if described.log_files and out is None and num_ranks() is not None:
        raise InputError("--log-files under torchrun needs --out, so that all processes write into the same folder")
    if not is_main_process():  # another rank of torchrun's speaks for the run
        error = execute(described, out).error
        raise SystemExit(0 if error is None else error.exit_code)
    with Live(Console(stderr=True)) as live:
        bar = live.add(name)
        result = execute(
            described,
            folder,
            overwrite=overwrite,
            on_start=bar.on_start,
            on_event=bar.on_event,
            on_progress=bar.on_progress,
        )
        bar.close(result.summary.reason)
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        _show(result, {name: bar.outline} if described.detail else {})
    if result.error is not None:
        raise result.error


def _show(result: Result, figure: Mapping[str, RunOutline]) -> None:
    console = Console()
    console.print(comparison_table([result.summary]))
    if result.folder is None:
        return
    if figure:
        draw(figure, result.folder / FIGURE, console)
    console.print(f"results in {result.folder}", markup=False)
