"""What Accelerate believes about this process."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from ownpace.engines.process.meet.environment import Environment


def leave_to_fleet() -> None:
    """Tell Accelerate that this process is alone, with its rank as its index: the fleet does what ranks do together.

    Call it before `Accelerator()` in a script that uses Accelerate itself; `OwnpaceTrainer` calls it.
    """
    started = Environment.read() or Environment.alone()
    state = PartialState()  # finds this process's device
    alone: dict[str, Any] = {
        "distributed_type": DistributedType.NO,
        "num_processes": 1,
        "process_index": started.rank,
        "local_process_index": started.local_rank,
    }
    if state.device.type == "cpu":
        # Not "cpu:0": moving a model there copies it, away from where `fleet.wrap` has put it.
        alone["device"] = torch.device("cpu")
    for shared in (state.__dict__, AcceleratorState().__dict__ if AcceleratorState._shared_state else {}):
        shared.update(alone)
