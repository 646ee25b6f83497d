"""`--tensorboard` and `--wandb`: other tools that see a run while it goes on."""

from __future__ import annotations

import json
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
    from ownpace.report.exports.loggers import import_tensorboard
    from ownpace.run import config_file, hooks

    # What one of them refuses must not leave traces in the other: TensorBoard only has to be installed, and begins a
    # file at once; W&B may refuse to begin.
    if tensorboard is not None:
        import_tensorboard()
    with ExitStack() as stack:
        listeners = []
        if wandb is not None:
            settings = json.loads(config_file.to_text(values_of(config)))
            listeners.append(stack.enter_context(hooks.wandb(wandb, name, settings)))
        if tensorboard is not None:
            listeners.append(stack.enter_context(hooks.tensorboard(tensorboard / name)))
        yield hooks.Listeners(listeners)
