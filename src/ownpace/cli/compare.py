"""`ownpace compare`: several algorithms on the same fleet, task and seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ownpace.algorithms import ALGORITHMS
from ownpace.cli import options
from ownpace.cli.progress import Live
from ownpace.cli.show import draw
from ownpace.core.contract.errors import DivergenceError, InputError, unknown
from ownpace.core.contract.events import read_events
from ownpace.report.summary import Summary
from ownpace.report.table import comparison_table
from ownpace.run import EVENTS, Config, Result, RunFolder, execute


@options.with_shared_options
def compare(
    *,
    algorithm: Annotated[
        str, typer.Option("--algorithm", "--algorithms", help="Names with commas between. " + options.ALGORITHM_HELP)
    ] = "sync,balanced,abs,pace",
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--parameter", metavar="[ALGORITHM.]NAME=VALUE", help="A parameter of an algorithm; repeatable."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seed", "--seeds", help="One seed, or several with commas between.")] = "0",
    shared: options.Shared,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Compare algorithms on the same fleet, task and seeds: a table and a figure.

    Example: ownpace compare --algorithms sync,async,grouping,pace --fleet steep --target 0.95 --seeds 0,1,2

    With --engine both, each algorithm is run on real processes and predicted in virtual time, side by side.

    Each run gets its own folder in --out; beside them lie comparison.json and figure.png.
    """
    names = _names(algorithm)
    numbers = _seeds(seeds)
    engines = ("process", "virtual") if shared.engine == "both" else (shared.engine,)
    configs = [
        shared.config(name, _own(parameter, name, names), seed, engine)
        for name in names
        for engine in engines
        for seed in numbers
    ]
    jobs = [config.job() for config in configs]  # so that bad input is found before anything runs
    folder = options.folder_for(out, "compare", shared.task)
    for config in configs:
        RunFolder.check(folder / _label(config, numbers), overwrite=overwrite)
    results: list[Result] = []
    with Live(Console(stderr=True)) as live:
        bars = [
            live.add(_label(config, numbers), job.samples, job.seconds)
            for config, job in zip(configs, jobs, strict=True)
        ]
        for config, bar in zip(configs, bars, strict=True):
            place = folder / _label(config, numbers)
            result = execute(config, place, overwrite=overwrite, on_event=bar.on_event, on_progress=bar.on_progress)
            bar.close(result.summary.reason)
            results.append(result)
            if result.error is not None and not isinstance(result.error, DivergenceError):
                break
    _show(folder, results, as_json)
    error = results[-1].error
    if error is not None and (not isinstance(error, DivergenceError) or all(r.error for r in results)):
        raise error


def _show(folder: Path, results: list[Result], as_json: bool) -> None:
    content: dict[str, Any] = {"runs": [result.as_dict() for result in results], "out": str(folder)}
    (folder / "comparison.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console = Console(stderr=as_json)
    console.print(comparison_table([result.summary for result in results]))
    both = len({result.summary.engine for result in results}) > 1
    first_seeds = {_name(result.summary, both): result for result in reversed(results)}
    runs = {
        name: list(read_events(result.folder / EVENTS))
        for name, result in reversed(first_seeds.items())
        if result.folder is not None
    }
    draw(runs, folder / "figure.png", console)
    console.print(f"results in {folder}", markup=False)
    if as_json:
        typer.echo(json.dumps(content))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in ALGORITHMS:
            raise unknown("algorithm", name, ALGORITHMS, "`ownpace list` describes them")
    if not names or len(set(names)) < len(names):
        raise InputError(f"--algorithm was given '{text}'; name at least one algorithm, each once, as in sync,async")
    return names


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seed was given '{text}'; write whole numbers with commas between, as in 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seed was given '{text}'; give each seed once")
    return seeds


def _own(parameters: list[str] | None, name: str, names: list[str]) -> list[str]:
    """The parameters meant for one of several algorithms: those that name it, as in stale.staleness=5, or nobody."""
    own = []
    for text in parameters or ():
        key = text.partition("=")[0]
        prefix, dot, _ = key.partition(".")
        if not dot:
            if len(names) > 1:
                raise InputError(f"-p was given '{text}'; say for which algorithm, as in -p {names[0]}.{text}")
            own.append(text)
        elif prefix not in names:
            raise unknown("algorithm in -p:", prefix, names)
        elif prefix == name:
            own.append(text.removeprefix(f"{prefix}."))
    return own


def _name(summary: Summary, both: bool) -> str:
    """What to call a run in the figure."""
    return f"{summary.algorithm}, predicted" if both and summary.engine == "virtual" else summary.algorithm


def _label(config: Config, seeds: list[int]) -> str:
    """The name of a run's folder."""
    parts = [str(config.algorithm)]
    if config.engine == "virtual":
        parts.append("virtual")
    if len(seeds) > 1:
        parts.append(str(config.seed))
    return "-".join(parts)
