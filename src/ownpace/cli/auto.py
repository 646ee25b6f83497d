"""`--algorithm auto` on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pathlib import Path

    from ownpace.cli.options import Given
    from ownpace.run.config import Config

AUTO = "auto"


def chosen(described: Config, given: Given, out: Path | None, *, overwrite: bool, goes_on: bool) -> Config:
    """The run with the algorithm that `auto` stands for; torchrun's other ranks hear it from the first.

    Args:
        described: The run, as it was asked for; if it goes on, as it began.
        given: What the command line says.
        out: The run's folder, if it was named.
        overwrite: Whether that may hold a run.
        goes_on: Whether torchrun has started it again: then the choice was made before.
    """
    from ownpace.auto import Chosen, check_out, choose
    from ownpace.engines import is_main_process

    console = Console(stderr=True)

    def say(line: str) -> None:
        if is_main_process():
            console.print(f"ownpace: {line}", markup=False, highlight=False)

    if goes_on:
        choose(described, say, Chosen.of(described))
        return described
    check_out(out, overwrite=overwrite)
    keep_lr = given.fields.get("lr") is not None
    made = choose(described, say)
    if keep_lr and made.lr is not None:
        say(f"auto: the learning rate stays {described.lr:g}, as given")
    return made.config(described, keep_lr=keep_lr)
