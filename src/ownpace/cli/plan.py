"""`ownpace plan`: which algorithm to take on one's machines, with what gain, and what would help."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from ownpace.algorithms import ALGORITHMS
from ownpace.cli import options
from ownpace.cli.completion import several_of
from ownpace.cli.logs import show_logs
from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.run.help import RUN, STOP

Algorithms = Annotated[
    str | None,
    typer.Option(
        "--algorithms",
        "--algorithm",
        help="Who takes part, with commas between (default: those that are worth it on this fleet).",
        metavar="NAMES",
        autocompletion=several_of(ALGORITHMS),
        rich_help_panel=RUN,
    ),
]
Questions = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        help="What another fleet would do: drop:CLASS, add:CLASS:NUMBER, bandwidth:x10, latency:x0.1, network:x10, or "
        "none (default: without each class of machines, ten times the network, twice as many of each class).",
        metavar="QUESTION",
        rich_help_panel=RUN,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        "--seeds", help="Try each algorithm's best rate with this many seeds.", metavar="N", rich_help_panel=RUN
    ),
]
TimingOnly = Annotated[
    bool, typer.Option("--timing-only", help="Rank by samples/s alone, without gradients.", rich_help_panel=RUN)
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        help="How long the plan may take, about; then it says what is known (default: a minute on an idle machine, two "
        "at most; with --timing-only and large fleets, more).",
        metavar="X",
        rich_help_panel=STOP,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        help="How many to use (default: one for each core, 16 at most).",
        metavar="N",
        rich_help_panel=RUN,
    ),
]
LEFT_OUT = (
    *("algorithm", "parameters", "engine", "seed", "lr", "timing_only", "schedule", "warmup_samples", "seconds"),
    *("stop_at_target", "eval_every", "evaluate", "checkpoint_every", "checkpoints_kept", "on_failure"),
    *("min_workers", "max_workers", "detail", "events_limit_mb", "log_files"),
)
"""What a plan decides by itself, or what has no meaning for it."""


@options.with_run_options(*LEFT_OUT)
def plan(
    *,
    config: options.ConfigFile = None,
    algorithms: Algorithms = None,
    what_if: Questions = None,
    seeds: Seeds = 3,
    timing_only: TimingOnly = False,
    seconds: Seconds = None,
    processes: Processes = None,
    given: options.Given,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
) -> None:
    """Say which algorithm to take on your machines, at which learning rate, and what would help.

    For example; and with machines that were measured, and questions of your own:

      ownpace plan --fleet 4,2,1,1
      ownpace plan --fleet fleet.toml --what-if drop:old --what-if add:new:2

    Each algorithm is simulated on the fleet, and learns with real gradients at its own best learning rate.
    """
    show_logs(verbose)
    _check("--seeds", seeds, 100)
    _check("--processes", processes, 1024)
    from ownpace.cli.plan_progress import Stages
    from ownpace.cli.plan_shown import show_plan
    from ownpace.planning import plan as make_plan

    with _sigterm_as_ctrl_c(), Stages(Console(stderr=True)) as stages:
        made = make_plan(
            given.config(config),
            algorithms=_names(algorithms),
            what_if=what_if or None,
            seconds=seconds,
            timing_only=timing_only,
            seeds=range(seeds),
            processes=processes,
            on_progress=stages.take,
        )
    show_plan(made, Console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(made.to_json()))
    if made.interrupted:
        raise Interrupted("interrupted; the plan above is what was known by then")


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """A time limit of a cluster, say, gets the verdict so far, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def _check(option: str, given: int | None, most: int) -> None:
    if given is not None and not 1 <= given <= most:
        raise InputError(f"{option} was given {given}; give a number from 1 to {most}")
