"""`ownpace train`: one algorithm on one fleet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from ownpace.cli import hooks, options
from ownpace.cli.auto import AUTO, chosen
from ownpace.cli.logs import show_logs
from ownpace.core.contract.errors import InputError, OwnpaceError
from ownpace.run.place import FIGURE

if TYPE_CHECKING:  # and in functions below: these need torch, for which `--help` must not wait
    from ownpace.core.contract.events import Event
    from ownpace.report.outline import RunOutline
    from ownpace.run import Config, Result
    from ownpace.run.hooks import Listeners
    from ownpace.run.resume import Resumption


@options.with_run_options()
def train(
    *,
    config: options.ConfigFile = None,
    resume: options.Resume = None,
    given: options.Given,
    insecure: options.Insecure = False,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    tensorboard: hooks.TensorBoard = None,
    wandb: hooks.Wandb = None,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
) -> None:
    """Train one model with one algorithm on one fleet.

    For example; then with another learning rate; and on from its last checkpoint (without --epochs, if it was cut off):

      ownpace train --fleet 4,2,1,1 --checkpoint-every 10000 --out runs/first
      ownpace train --config runs/first/config.json --lr 0.1
      ownpace train --resume runs/first --epochs 50

    Results go into a folder: config.json, events.jsonl, checkpoints, model.safetensors, summary.json, figure.png.
    """
    from ownpace.engines import is_main_process
    from ownpace.run.again import started_again
    from ownpace.run.saved import label

    show_logs(verbose)
    if insecure:  # of this start, not of the run: no configuration file should say it
        os.environ["OWNPACE_INSECURE"] = "1"
    again = started_again(out)
    replaces = overwrite or again is not None
    resumption = (again and again.resumption) or _resumption(resume, config, given)
    described = given.config(config) if resumption is None else resumption.config
    if given.fields.get("algorithm") == AUTO:
        described = chosen(described, given, out, overwrite=replaces, goes_on=resumption is not None)
    out = resumption.run if out is None and resumption is not None else out
    _check_logs(described, out)
    folder = options.folder_for(out, name := label(described.algorithm), label(described.task))
    if not is_main_process():  # another rank of torchrun's speaks for the run, and writes
        _take_part(described, folder, resumption)
    others = partial(hooks.listening, tensorboard, wandb, folder.name)
    result = _run(described, folder, resumption, others, overwrite=replaces, plain=not as_json)
    _show(result, {name: result.outline}, Console(quiet=as_json))  # quiet for a program: the figure is still drawn
    _finish(result, as_json)


def _check_logs(described: Config, out: Path | None) -> None:
    from ownpace.engines import num_ranks

    # Otherwise each process would make up a folder: its name has the time at which it was asked for.
    if described.log_files and out is None and num_ranks() is not None:
        raise InputError("--log-files under torchrun needs --out, so that all processes write into the same folder")


def _finish(result: Result, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    if result.error is not None:
        if (hint := result.how_to_go_on()) is not None:
            typer.echo(f"ownpace: {hint}", err=True)
        raise result.error


def _take_part(described: Config, folder: Path, resumption: Resumption | None) -> NoReturn:
    from ownpace.run import execute

    with _speaking_for_the_first(folder):
        error = execute(described, folder, resumption=resumption).error
    raise SystemExit(0 if error is None else error.exit_code)


@contextmanager
def _speaking_for_the_first(folder: Path) -> Iterator[None]:
    """If rank 0 is gone, which speaks for the run, the next one says so, and how to go on."""
    from ownpace.core.learning.state_file import StateFile
    from ownpace.engines import is_next_in_line
    from ownpace.run.checkpoints import Checkpoints, go_on_from, readable

    try:
        yield
    except OwnpaceError as error:
        if error.blame == "rank 0" and is_next_in_line():
            error.told = False
            whole = (
                path for path, found in readable(Checkpoints(folder).newest_first()) if isinstance(found, StateFile)
            )
            for checkpoint in islice(whole, 1):
                typer.echo(f"ownpace: {go_on_from(checkpoint)}", err=True)
        raise


def _run(
    config: Config,
    folder: Path,
    resumption: Resumption | None,
    others: Callable[[Config], AbstractContextManager[Listeners]],
    *,
    overwrite: bool,
    plain: bool,
) -> Result:
    """Run it with a bar that shows how far it is, and with other tools that listen."""
    from ownpace.cli.progress import Live
    from ownpace.run import execute
    from ownpace.run.saved import label

    job = config.job(folder, resumed=resumption is not None)  # first: bad input must not leave traces in other tools
    with others(config) as listeners, Live(Console(stderr=True), plain=plain) as live:
        bar = live.add(label(config.algorithm))

        def on_event(event: Event) -> None:
            bar.on_event(event)
            listeners(event)

        result = execute(
            config,
            folder,
            overwrite=overwrite,
            resumption=resumption,
            job=job,
            on_start=partial(bar.on_start, engine=config.engine_name),
            on_event=on_event,
            on_progress=bar.on_progress,
        )
        bar.close(result.summary.reason)
    return result


def _resumption(resume: Path | None, config: Path | None, given: options.Given) -> Resumption | None:
    """What the run goes on from, if it is to."""
    if resume is None:
        return None
    from ownpace.run.resume import find_resumption

    if given.fields.get("algorithm") == AUTO:
        raise InputError("--algorithm is auto, but a run that goes on keeps the algorithm it has; leave it out")
    if config is not None:
        raise InputError(f"--resume takes the run's own configuration, but --config was given {config}; drop one")
    return find_resumption(resume, given.fields)


def _show(result: Result, figure: Mapping[str, RunOutline], console: Console) -> None:
    from ownpace.cli.show import draw, show_place, show_remarks, show_warnings
    from ownpace.report.table import comparison_table

    console.print(comparison_table([result.summary], console.width))
    show_remarks([result], console)
    if result.folder is not None:
        draw(figure, result.folder / FIGURE, console)
        show_place(result.folder, console)
    if not console.quiet:
        show_warnings([result])
