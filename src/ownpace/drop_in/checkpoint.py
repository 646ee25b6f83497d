"""All that a run needs to go on later: models, optimizers, schedules, what is left of the data, random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ownpace.core.contract.errors import InputError
from ownpace.drop_in.progress import FleetProgress
from ownpace.drop_in.random_states import read_states, set_states, states_from_plain, states_to_plain
from ownpace.engines.process.run.joining import LoopRun

_FORMAT = 1
State = dict[str, Any]
"""Plain values and tensors: torch.save writes it, torch.load(…, weights_only=True) reads it."""


class Checkpoint:
    """Reads and restores the state of one fleet, on this rank."""

    def __init__(
        self,
        run: LoopRun,
        progress: FleetProgress,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
    ) -> None:
        self._run = run
        self._progress = progress
        self._parts: dict[str, Sequence[Any]] = {
            "models": models,
            "optimizers": optimizers,
            "schedulers": schedulers,
        }

    def read(self, *, models: bool = True) -> State:
        """The state as it is now: after the latest update that this rank has made or heard of.

        `models`: with models, optimizers and schedules.
        """
        run = self._run
        run.take_optimizer_state()
        left = run.left()
        return {
            "ownpace": _FORMAT,
            "rank": run.rank,
            **{name: [_copied(one.state_dict()) for one in parts] for name, parts in self._parts.items() if models},
            "kept": {name: tensor.clone() for name, tensor in run.data.kept.items()},
            "progress": self._progress.state_dict(),
            "loop": run.data.latest,
            "data": dict(run.data.alike),
            "began": self._progress.loop_state(),
            "left": None if left is None else torch.tensor(left, dtype=torch.int64).reshape(-1, 2),
            "generators": states_to_plain(read_states()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            InputError: It is none of ours, or of other models, optimizers or schedules.
        """
        if not isinstance(state, Mapping) or state.get("ownpace") != _FORMAT:
            raise InputError("this is not a state of fleet.state_dict(); for a model's own, use model.load_state_dict")
        if self._run.is_open:
            raise InputError("a checkpoint was loaded after the first loop over fleet.batches; load it before")
        if "models" in state:
            self._restore_parts(state)
        self._progress.load_state_dict(state["progress"])
        left = None if state["left"] is None else [(int(first), int(stop)) for first, stop in state["left"].tolist()]
        if left is not None:
            self._progress.resume_loop(state["began"])
        self._run.data.go_on_from(int(state["loop"]), left, state["kept"], state["data"], _words(state))
        # A rank's own: on another one, two ranks would draw the same numbers.
        if state["rank"] == self._run.rank:
            set_states(states_from_plain(state["generators"]))

    def _restore_parts(self, state: Mapping[str, Any]) -> None:
        for name, parts in self._parts.items():
            if len(state[name]) != len(parts):
                raise InputError(
                    f"the checkpoint has {len(state[name])} {name}, this fleet {len(parts)}; wrap and schedule the "
                    "same ones, in the same order, before loading it"
                )
        for name, parts in self._parts.items():
            for part, saved in zip(parts, state[name], strict=True):
                part.load_state_dict(saved)


def _words(state: Mapping[str, Any]) -> str:
    """What ranks that have loaded different checkpoints can be told."""
    progress, left = state["progress"], state["left"]
    rest = "" if left is None else hashlib.sha256(left.numpy().tobytes()).hexdigest()[:8]
    return f"update {progress['updates']}, sample {progress['samples']} {rest}".strip()


def _copied(state: Any) -> Any:
    """The same, sharing no tensor with what goes on being trained."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, np.generic):  # a rate that was computed with numpy: torch.load would refuse the whole file
        return state.item()
    if isinstance(state, list | tuple):
        return type(state)(map(_copied, state)) if type(state) in (list, tuple) else state
    return state
