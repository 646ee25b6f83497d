"""What is said of a run whose launcher is gone."""

from __future__ import annotations

from pathlib import Path

from ownpace.run.checkpoints import Checkpoints
from ownpace.run.orphaned import last_words
from ownpace.run.waiting_folder import WaitingFolder

GONE = "the process that led the run is gone, and so the run has ended"


def test_how_to_go_on_is_said_where_the_run_has_a_checkpoint(tmp_path: Path) -> None:
    assert last_words(tmp_path) == [GONE]
    for samples in (2000, 10_000):
        Checkpoints(tmp_path).write(samples, {}, {}, kept=2)
    assert last_words(tmp_path) == [GONE, f"go on from sample 10,000 with: ownpace train --resume {tmp_path}"]


def test_the_checkpoint_of_a_run_that_was_not_yet_replaced_is_not_its_own(tmp_path: Path) -> None:
    Checkpoints(tmp_path).write(2000, {}, {}, kept=2)
    waiting = WaitingFolder(tmp_path)
    assert last_words(tmp_path) == [GONE]
    waiting.release()
