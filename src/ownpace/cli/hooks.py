"""`--tensorboard` and `--wandb`: other tools that see a run while it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ownpace.run.help import WRITE

if TYPE_CHECKING:
    from ownpace.run import Config
    from ownpace.run.hooks import Listeners

TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard", metavar="LOGDIR", help="Write scalars for TensorBoard during the run.", rich_help_panel=WRITE
    ),
]
Wandb = Annotated[
    str | None,
    typer.Option(
        "--wandb", metavar="PROJECT", help="Send scalars to Weights & Biases during the run.", rich_help_panel=WRITE
    ),
]


@contextmanager
def listening(tensorboard: Path | None, wandb: str | None, name: str, config: Config) -> Iterator[Listeners]:
    """Whoever is to hear of a run; if one of them fails, that is said once, and the run goes on.

    Raises:
        InputError: What is asked for is not installed.
    """
    from ownpace.core.settings import values_of
    from ownpace.report.exports.loggers import ScalarLogger, TensorBoardLogger, WandbLogger
    from ownpace.run import config_file
    from ownpace.run.hooks import Listeners, ScalarHook

    loggers: list[ScalarLogger] = []
    if tensorboard is not None:
        loggers.append(TensorBoardLogger(tensorboard / name, time.time()))
    if wandb is not None:
        loggers.append(WandbLogger(wandb, name, json.loads(config_file.to_text(values_of(config)))))
    with ExitStack() as stack:
        yield Listeners([stack.enter_context(ScalarHook(logger)) for logger in loggers])
