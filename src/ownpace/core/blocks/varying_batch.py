"""What algorithms share whose updates have as many samples as came together."""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.lr_rules import LrRule, LrRuleName
from ownpace.core.blocks.micro_batch import MicroBatch, Sizing
from ownpace.core.blocks.paces import check_smoothing
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker


@dataclass(frozen=True, kw_only=True)
class VaryingBatch(Algorithm):
    """The settings of algorithms whose updates have as many samples as came together."""

    lr_rule: LrRuleName = "constant"
    """How the learning rate follows the samples of an update: constant, linear, sqrt or adascale."""
    micro: Sizing = "fixed"
    """Micro-batches of the same size, or of sizes that take everybody equally long."""
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's pace, for equal-time."""

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def rule_of(self, me: Worker) -> LrRule:
        """The learning rates of my updates."""
        return LrRule(self.lr_rule, me.batch_size * len(me.workers))

    def micro_of(self, me: Worker) -> MicroBatch:
        """The sizes of my micro-batches."""
        return MicroBatch(me.rank, len(me.workers), me.micro_batch, self.micro, self.smoothing)
