"""Steps of optimizers that a fleet was not given: what they change is something else on each rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.node.user_pair import UserPair


class OtherSteps:
    """Refuses them for parameters of the fleet's models, and warns of them for others, while a loop runs."""

    of_a_fleet = True
    """As a hook on all steps: it changes nothing of the fleet's own."""

    def __init__(self, pairs: Callable[[], Sequence[UserPair]], is_running: Callable[[], bool], *, alone: bool) -> None:
        self._pairs = pairs
        self._is_running = is_running
        self._alone = alone
        self._hook: RemovableHandle | None = None
        self._has_warned = False

    def watch(self) -> None:
        """Look at the steps of all optimizers of this process, from now on."""
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self)

    def release(self) -> None:
        """Leave them alone."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        """An optimizer is about to step."""
        if not self._is_running() or any(pair.has_optimizer(optimizer) for pair in self._pairs()):
            return
        theirs = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        ours = {id(parameter) for pair in self._pairs() for parameter in pair.model.parameters()}
        name = type(optimizer).__name__
        if any(id(parameter) in ours for parameter in theirs):
            raise InputError(
                f"fleet.wrap was not given the {name} that steps parameters of its model, so they would move on this "
                "rank alone; wrap it before the first loop, or end the `with` and join again with the new optimizer"
            )
        are_learnt = any(isinstance(parameter, nn.Parameter) for parameter in theirs)
        is_of_another = getattr(optimizer.step, "of_a_fleet", False)
        if are_learnt and not (is_of_another or self._alone or self._has_warned):
            self._has_warned = True
            warnings.warn(
                f"fleet.wrap was not given the {name} that steps in the loop, so each rank makes them for itself; "
                "if all ranks are to learn its parameters together, wrap it with its model",
                stacklevel=4,
            )
