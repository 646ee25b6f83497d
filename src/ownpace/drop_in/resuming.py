"""What a script calls to stop and go on later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ownpace.core.contract.errors import InputError
from ownpace.drop_in.checkpoint import Checkpoint
from ownpace.drop_in.files import read, write
from ownpace.drop_in.fleet_models import FleetModels


class ResumableFleet(FleetModels):
    """All that a fleet needs to go on later, as a dictionary or as a file."""

    def state_dict(self, *, models: bool = True) -> dict[str, Any]:
        """All that a run needs to go on later, on as many ranks as it then has: plain values and tensors.

        Models, optimizers (also of parameter servers), schedulers given to the fleet, what the algorithm keeps, how far
        the fleet is and which samples of the running loop are left, as of the latest update that this rank knows of;
        and this rank's random numbers. One rank's state is enough for all; no other waits for it. Write it with
        `fleet.save`, or with torch.save for torch.load(…, weights_only=True).

        Args:
            models: False: without models, optimizers and schedulers, where a framework saves and loads those itself.
        """
        return self._checkpoint().read(models=models)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `state_dict`, the same on all ranks: after `wrap` and `schedule`, before any loop.

        If it was taken within a loop over `fleet.batches`, the next loop goes on with that one: given the same
        arguments, it deals the samples that are left.
        """
        self._checkpoint().restore(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a file: safetensors if its name ends so, else for torch.load(…, weights_only=True).

        The file that was there before is replaced only when the new one is whole.
        """
        write(self.state_dict(), path)
        if self._run.has_met and not self._run.is_over:
            self._run.presence.saved(str(Path(path).resolve()))  # what to go on from, if rank 0 dies

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of `save`, as with `load_state_dict`."""
        self.load_state_dict(read(path))

    def _checkpoint(self) -> Checkpoint:
        if self._wrapped is None:
            raise InputError("a checkpoint needs a model; call fleet.wrap(model, optimizer) before it")
        optimizers = [pair.optimizer for pair in self._wrapped.parameters.pairs]
        schedulers = [followed.scheduler for followed in self._schedules]
        return Checkpoint(self._run, self._progress, self._wrapped.models, optimizers, schedulers)
