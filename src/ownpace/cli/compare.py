"""`ownpace compare`: several algorithms on the same fleet, task and seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ownpace.algorithms import ALGORITHMS, COMPARED, unknown_algorithm
from ownpace.cli import options
from ownpace.cli.completion import several_of
from ownpace.cli.logs import show_logs
from ownpace.core.contract.errors import DivergenceError, InputError, NotWritten, unknown
from ownpace.core.settings import describe
from ownpace.core.whole_file import write_text
from ownpace.run.config import Config, help_of
from ownpace.run.help import RUN
from ownpace.run.place import COMPARISON, FIGURE, check_comparison, check_run

if TYPE_CHECKING:  # and in functions below: these need torch, for which `--help` must not wait
    from ownpace.engines import Job
    from ownpace.report.summary import Summary
    from ownpace.run import Result

Runs = Sequence[tuple[Config, Path]]
"""What to run, and the folder of each."""
_COMPARED = ",".join(COMPARED)
Algorithms = Annotated[
    str,
    typer.Option(
        "--algorithms",
        "--algorithm",
        # Not as the field says: what `auto` chooses is no algorithm to compare.
        help=f"What to compare: {', '.join(ALGORITHMS)}, or my.py:Class. Several, with commas between.",
        metavar="NAMES",
        show_default=_COMPARED,
        autocompletion=several_of(ALGORITHMS),
        rich_help_panel=RUN,
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--parameter",
        help="Parameters of the algorithms.",
        metavar="[ALGORITHM.]NAME=VALUE",
        rich_help_panel=RUN,
    ),
]
Engines = Annotated[
    str | None, typer.Option(help=help_of("engine").text, metavar="virtual|process|both", rich_help_panel=RUN)
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        "--seed",
        help=f"{help_of('seed').text} Several, with commas between.",
        metavar="NUMBERS",
        show_default="0",
        rich_help_panel=RUN,
    ),
]


@options.with_run_options("algorithm", "parameters", "engine", "seed")
def compare(
    *,
    config: options.ConfigFile = None,
    algorithms: Algorithms = _COMPARED,
    parameter: Parameters = None,
    engine: Engines = None,
    seeds: Seeds = None,
    given: options.Given,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
) -> None:
    """Compare algorithms on the same fleet, task and seeds: a table and a figure.

    For example:

      ownpace compare --algorithms sync,async,pace --fleet steep

    The target is the task's own, unless you give one: `ownpace list` shows it.

    With --engine both, each algorithm is run on real processes and predicted in virtual time, side by side.

    Each run gets its own folder in --out, next to comparison.json and figure.png.
    """
    from ownpace.run.saved import label

    show_logs(verbose)
    names = _names(algorithms)
    numbers = [given.config(config).seed] if seeds is None else _seeds(seeds)
    engines = ("process", "virtual") if engine == "both" else (engine,)
    configs = [
        given.config(config, algorithm=name, parameters=_own(parameter, name, names), seed=seed, engine=one)
        for name, one, seed in product(names, engines, numbers)
    ]
    if config is None:  # a file says all there is to say, also that there is no target
        configs = [_with_target(each) for each in configs]
    folder = options.folder_for(out, "compare", label(configs[0].task))
    runs = [(each, folder / _folder_name(each, numbers)) for each in configs]
    check_comparison(folder, overwrite=overwrite)
    results = _run_all(runs, overwrite, plain=not as_json)
    if results[-1].error is not None and results[0].folder is None:
        raise results[-1].error  # nothing was begun, so what an earlier comparison left stays
    _show(folder, results, as_json)
    _fail(results)


def _fail(results: Sequence[Result]) -> None:
    """Raise what ended a comparison. Algorithms that diverge are what it is for: it fails only if all of them do."""
    error = results[-1].error
    if error is not None and (not isinstance(error, DivergenceError) or all(r.error for r in results)):
        raise error


def _with_target(config: Config) -> Config:
    """The same with the task's own target, if there is none and time is not all that is asked for."""
    from ownpace.run.names import task_of

    if config.timing_only or config.target is not None or config.target_loss is not None:
        return config
    usual = task_of(config.task, config.model, config.task_parameters).defaults
    return replace(config, target=usual.target, target_loss=usual.target_loss)


def _run_all(runs: Runs, overwrite: bool, *, plain: bool) -> list[Result]:
    """The results of one run after the other, until one ends in an error that is not its algorithm's."""
    from ownpace.cli.progress import Live
    from ownpace.run import execute

    jobs: list[Job] = []
    for config, place in runs:  # so that bad input is found before anything runs
        jobs.append(config.job(place))
        check_run(place, overwrite=overwrite)
    results: list[Result] = []
    with Live(Console(stderr=True), plain=plain) as live:
        bars = [live.add(place.name) for _, place in runs]
        for (config, place), job, bar in zip(runs, jobs, bars, strict=True):
            result = execute(
                config,
                place,
                overwrite=overwrite,
                job=job,
                on_start=partial(bar.on_start, engine=config.engine_name),
                on_event=bar.on_event,
                on_progress=bar.on_progress,
            )
            bar.close(result.summary.reason)
            results.append(result)
            # An algorithm that diverges is a result. Ctrl-C or a dead machine would end the next run, too.
            if result.error is not None and not isinstance(result.error, DivergenceError):
                break
    return results


def _show(folder: Path, results: list[Result], as_json: bool) -> None:
    from ownpace.cli.show import draw, show_place, show_remarks, show_warnings
    from ownpace.report.groups import grouped
    from ownpace.report.table import comparison_table

    summaries = [result.summary for result in results]
    content = {
        "runs": [result.as_dict() for result in results],
        "algorithms": [group.as_dict() for group in grouped(summaries)],
        "out": str(folder),
    }
    # Before anything is drawn: a figure that fails must not cost the results.
    try:
        write_text(folder / COMPARISON, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise NotWritten(f"{folder / COMPARISON} cannot be written: {error}; its runs are in {folder}") from None
    console = Console(stderr=as_json)
    console.print(comparison_table(summaries, console.width))
    show_remarks(results, console)
    both = len({result.summary.engine for result in results}) > 1
    # Reversed twice: of several seeds the first is drawn, and algorithms stay in the order given.
    known = [(_name(result.summary, both), result.outline) for result in results]
    seeds = sorted({result.summary.seed for result in results})
    note = f"seed {results[0].summary.seed} of {len(seeds)} seeds" if len(seeds) > 1 else None
    draw(dict(reversed(dict(reversed(known)).items())), folder / FIGURE, console, note)
    show_place(folder, console)
    if not as_json:
        show_warnings(results)
    if as_json:
        typer.echo(json.dumps(content))


def _names(text: str) -> list[str]:
    from ownpace.run.saved import label

    names = [name.strip() for name in text.split(",") if name.strip()]
    # All names before any run: one that is misspelt is found at once.
    for name in names:
        if name not in ALGORITHMS and ":" not in name:
            raise unknown_algorithm(name)
    # By what they are called: that is the name of each run's folder, and of its line in the table.
    if not names or len(set(map(label, names))) < len(names):
        raise InputError(f"--algorithms was given '{text}'; name at least one algorithm, each once, as in sync,async")
    return names


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds was given '{text}'; write whole numbers with commas between, as in 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds was given '{text}'; give each seed once")
    return seeds


def _own(parameters: list[str] | None, name: str, names: list[str]) -> dict[str, str]:
    """The parameters meant for one of several algorithms: those that name it, as in stale.staleness=5."""
    from ownpace.run.saved import label

    own = []
    for text in parameters or ():
        prefix, dot, _ = text.partition("=")[0].rpartition(".")
        if not dot:
            if len(names) > 1:
                example = next((label(each) for each in names if _has(each, text.partition("=")[0])), "NAME")
                raise InputError(f"-p was given '{text}'; say for which algorithm, as in -p {example}.{text}")
            own.append(text)
        elif prefix not in names and prefix not in map(label, names):
            raise unknown("algorithm in -p:", prefix, map(label, names))
        elif prefix in (name, label(name)):
            own.append(text.removeprefix(f"{prefix}."))
    return options.parse_parameters(own, "-p")


def _has(algorithm: str, parameter: str) -> bool:
    return algorithm in ALGORITHMS and parameter in describe(ALGORITHMS[algorithm])


def _name(summary: Summary, both: bool) -> str:
    """What to call a run in the figure."""
    return f"{summary.algorithm}, predicted" if both and summary.engine == "virtual" else summary.algorithm


def _folder_name(config: Config, seeds: list[int]) -> str:
    """The name of a run's folder."""
    from ownpace.run.saved import label

    parts = [label(config.algorithm)]
    if config.engine == "virtual":
        parts.append("virtual")
    if len(seeds) > 1:
        parts.append(str(config.seed))
    return "-".join(parts)
