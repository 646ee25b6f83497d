"""What a worker takes over of another's state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ownpace.engines.process.lives.exchange import take_kept


def test_what_an_algorithm_keeps_is_what_the_giver_has() -> None:
    """What it has not any more is let go of, in the same mapping: the algorithm holds on to it."""
    kept = {"gone": torch.ones(1), "older": torch.ones(1)}
    worker: Any = SimpleNamespace(kept=kept, context=SimpleNamespace(like=torch.zeros(1)))
    take_kept(worker, {"kept": {"older": torch.full((1,), 2.0)}})
    assert worker.kept is kept
    assert kept == {"older": torch.full((1,), 2.0)}
