"""What is said of a run whose launcher is gone, by one of the processes that it left: they end, and it cannot speak."""

from __future__ import annotations

from pathlib import Path

from ownpace.run.checkpoints import Checkpoints, go_on_from
from ownpace.run.waiting_folder import is_waiting


def last_words(run: Path) -> list[str]:
    """That the run has ended, and how to go on with it, if there is a checkpoint of its own to go on from."""
    # Not read, which may take long: a checkpoint gets its name when it is whole, and this process has to end.
    own = [] if is_waiting(run) else Checkpoints(run).newest_first()[:1]
    return ["the process that led the run is gone, and so the run has ended", *map(go_on_from, own)]
