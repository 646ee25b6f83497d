"""What algorithms are made of, for those of your own: all that ours take from the package, under one name.

    from ownpace.blocks import LocalRound, not_negative

The contract (`Algorithm`, `Worker`, `Server`, `Communicator`, `Gradient`, `Parameters`) is in `ownpace` itself.
"""

from ownpace.core.blocks.accumulate import (
    accumulate,
    accumulate_all_but_last,
    accumulate_and_reduce,
    accumulate_and_step,
    accumulate_until,
)
from ownpace.core.blocks.division import Division
from ownpace.core.blocks.group_barrier import Gathered, Gathering, leave, step_together
from ownpace.core.blocks.local_round import LocalRound, check_steps
from ownpace.core.blocks.lr_rules import LrRule, Scaling
from ownpace.core.blocks.micro_batch import MicroBatch, Sizing
from ownpace.core.blocks.outer_step import OuterStep, check_outer_step
from ownpace.core.blocks.paces import Paces, check_smoothing, differs, divide
from ownpace.core.blocks.push_pull import compute_and_push, pull, push, push_by_layer
from ownpace.core.blocks.quota import Quota
from ownpace.core.blocks.round_limit import RoundLimit
from ownpace.core.blocks.varying_batch import OwnPace, VaryingBatch
from ownpace.core.blocks.waiting import MOST_WAIT, Waiting, check_max_wait
from ownpace.core.contract.errors import shown
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import NO_NOTES, Address, Batch, Contribution, Notes, Sources, sum_sources, union
from ownpace.core.settings import not_negative, positive

__all__ = [
    "MOST_WAIT",
    "NO_NOTES",
    "Address",
    "Batch",
    "Contribution",
    "Division",
    "Gathered",
    "Gathering",
    "LocalRound",
    "LrRule",
    "MicroBatch",
    "Notes",
    "OuterStep",
    "OwnPace",
    "Paces",
    "Pending",
    "Quota",
    "RoundLimit",
    "Scaling",
    "Sizing",
    "Sources",
    "VaryingBatch",
    "Waiting",
    "accumulate",
    "accumulate_all_but_last",
    "accumulate_and_reduce",
    "accumulate_and_step",
    "accumulate_until",
    "check_max_wait",
    "check_outer_step",
    "check_smoothing",
    "check_steps",
    "compute_and_push",
    "differs",
    "divide",
    "leave",
    "not_negative",
    "positive",
    "pull",
    "push",
    "push_by_layer",
    "shown",
    "step_together",
    "sum_sources",
    "union",
]
