"""How a run learns, from its description: what it says, and for the rest what its task does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.dataset_samples import samples_to_learn
from ownpace.core.learning.defaults import Defaults
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.schedule import Schedule
from ownpace.core.settings import positive
from ownpace.run.names import optimizer_of

if TYPE_CHECKING:
    from ownpace.core.contract.algorithm import Algorithm
    from ownpace.core.learning.task import Task
    from ownpace.run.config import Config

MOST_SAMPLES = 10**15


def optimizer_spec(config: Config, algorithm: Algorithm, task: Task, samples: int | None) -> OptimizerSpec:
    """The optimizer of a run of this many samples (None: they are not known)."""
    optimizer = optimizer_of(config.optimizer)
    is_named = isinstance(optimizer, str)
    # A function that makes an optimizer has a learning rate of its own, and maybe a schedule.
    usual = task.defaults if is_named else Defaults()
    lr, momentum = usual.for_optimizer(optimizer if isinstance(optimizer, str) else "sgd", config.momentum)
    if optimizer == "sgd":  # with others, the size of a step hardly depends on how many samples it has
        lr *= algorithm.times_usual_lr
    # A schedule needs to know where the run ends.
    shape = config.schedule or ("constant" if samples is None else usual.schedule)
    return OptimizerSpec(
        name=optimizer if isinstance(optimizer, str) else "sgd",
        custom=None if isinstance(optimizer, str) else optimizer,
        lr=lr if config.lr is None else config.lr,
        momentum=momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
        schedule=Schedule(shape=shape, warmup_samples=config.warmup_samples),
    )


def num_samples(config: Config, task: Task) -> int | None:
    """How many samples a run learns from; None: it ends by time alone."""
    if config.samples is not None and config.epochs is not None:
        raise InputError(f"samples is {config.samples} and epochs is {config.epochs}; give one of them")
    # Here and not in Job, which knows samples only.
    positive(epochs=config.epochs)
    if config.samples is not None or (config.epochs is None and config.seconds is not None):
        return config.samples
    epochs = task.defaults.epochs if config.epochs is None else config.epochs
    # Bounded before rounding: the product may be infinite, which cannot be rounded.
    samples = round(min(epochs * len(samples_to_learn(task)), MOST_SAMPLES))
    if not 0 < samples < MOST_SAMPLES:
        raise InputError(f"epochs is {epochs}, which makes {samples:,} samples; choose another number")
    return samples
