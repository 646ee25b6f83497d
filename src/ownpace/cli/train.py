"""`ownpace train`: one algorithm on one fleet."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from ownpace.algorithms import DEFAULT
from ownpace.cli import options
from ownpace.cli.progress import Live
from ownpace.cli.show import draw
from ownpace.core.contract.events import read_events
from ownpace.engines import is_main_process
from ownpace.report.table import comparison_table
from ownpace.run import EVENTS, execute


@options.with_shared_options
def train(
    *,
    algorithm: Annotated[str, typer.Option(help=options.ALGORITHM_HELP)] = DEFAULT,
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="A parameter of the algorithm; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same run: byte for byte.")] = 0,
    shared: options.Shared,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Train one model with one algorithm on one fleet.

    Example: ownpace train --algorithm balanced --fleet 4,2,1,1 --target 0.95

    Results go into a folder: config.json, events.jsonl, model.safetensors, summary.json, figure.png.
    """
    config = shared.config(algorithm, parameter, seed)
    job = config.job()
    folder = options.folder_for(out, algorithm, shared.task)
    if not is_main_process():  # another rank of torchrun's speaks for the run
        error = execute(config).error
        raise SystemExit(0 if error is None else error.exit_code)
    with Live(Console(stderr=True)) as live:
        bar = live.add(algorithm, job.samples, job.seconds)
        result = execute(config, folder, overwrite=overwrite, on_event=bar.on_event, on_progress=bar.on_progress)
        bar.close(result.summary.reason)
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        console = Console()
        console.print(comparison_table([result.summary]))
        if config.detail:
            draw({algorithm: list(read_events(folder / EVENTS))}, folder / "figure.png", console)
        console.print(f"results in {folder}", markup=False)
    if result.error is not None:
        raise result.error
