"""What a checkpoint and the run that goes on from it must have in common, besides the description of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.dataset_samples import samples_to_learn
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.job import Job, OnCheckpoint

_TASK = "task"


def on_checkpoint(job: Job, layout: Layout) -> OnCheckpoint | None:
    """Who takes the job's checkpoints, with what they are of."""
    take = job.on_checkpoint
    if take is None:
        return None
    # Under the same names, a user's own code may be another by the time that the run goes on.
    task = {
        "layers": [[layer.name, list(layer.shape)] for layer in layout.layers],
        "train_samples": len(samples_to_learn(job.task)),
    }
    return lambda state: take({**state, _TASK: task})


def resumed(job: Job, layout: Layout) -> PlainState | None:
    """The state that the job goes on from, if it does.

    Raises:
        InputError: It is of another model or of other data.
    """
    state = job.resume_from
    task = None if state is None else state.get(_TASK)
    if not isinstance(task, Mapping):
        return state
    here = [[layer.name, list(layer.shape)] for layer in layout.layers]
    for before, now in zip_longest(task["layers"], here):
        if before != now:
            raise InputError(
                f"the checkpoint is of another model: it has {_named(before)} where this one has {_named(now)}; "
                "use the model that it was made with, or begin a new run"
            )
    num_before, num_now = task["train_samples"], len(samples_to_learn(job.task))
    if num_before != num_now:
        raise InputError(
            f"the checkpoint was made with {num_before:,} training samples, but there are {num_now:,}; "
            "use the same data, or begin a new run"
        )
    return state


def _named(layer: Sequence[object] | None) -> str:
    if layer is None:
        return "no more layers"
    name, shape = layer
    return f"{name} of shape {shape}"
