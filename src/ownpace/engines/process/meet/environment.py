"""What the environment says to this process: torchrun's variables, and ours about time."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass

from torch import distributed

from ownpace.core.contract.errors import InputError, shown

TIMEOUT_S = 120.0
"""How long processes wait for each other at the start: on a busy machine, importing torch alone may take a minute."""
SILENCE_S = 10.0
"""How long a rank may not answer. It answers without its Python: a busy one does, one that is stopped does not."""
_MOST_S = 1_000_000
"""Eleven days: sockets count milliseconds with 31 bits."""


_STARTED = {"SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpiexec"}
"""What others than torchrun set to the number of processes that they start."""


@dataclass(frozen=True)
class Environment:
    """What torchrun says about this process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    """The host's number."""
    group_world_size: int

    @classmethod
    def read(cls) -> Environment | None:
        """What torchrun said, or None if it did not start this process.

        Raises:
            InputError: What it says is incomplete or wrong.
        """
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return None
        world_size = number_in("WORLD_SIZE")
        local_world_size = number_in("LOCAL_WORLD_SIZE", world_size)
        environment = cls(
            rank=number_in("RANK"),
            world_size=world_size,
            local_rank=number_in("LOCAL_RANK", number_in("RANK")),
            local_world_size=local_world_size,
            group_rank=number_in("GROUP_RANK", 0),
            group_world_size=number_in("GROUP_WORLD_SIZE", 1 if local_world_size == world_size else 2),
        )
        if not 0 <= environment.rank < environment.world_size:
            raise InputError(
                f"RANK is {environment.rank} and WORLD_SIZE is {environment.world_size}; ranks count from 0"
            )
        return environment

    @classmethod
    def alone(cls) -> Environment:
        """A fleet of one."""
        return cls(0, 1, 0, 1, 0, 1)

    @property
    def spans_hosts(self) -> bool:
        """Whether there is more than one host."""
        return self.group_world_size > 1 or self.local_world_size < self.world_size


def check_alone() -> None:
    """Look whether a process that nobody has told of others is one of several after all: each would train alone.

    Raises:
        InputError: It is, or it was told half of what it has to know.
    """
    needed = "each process needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: start the script with torchrun"
    for name, other, of_one in (("RANK", "WORLD_SIZE", 0), ("WORLD_SIZE", "RANK", 1)):
        if name in os.environ and other not in os.environ and number_in(name) != of_one:
            raise InputError(f"{name} is {os.environ[name]}, but {other} is not set; {needed}, or set {other}, too")
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        raise InputError(
            f"torch.distributed has {distributed.get_world_size()} ranks, but RANK and WORLD_SIZE are not set; "
            f"{needed}, or set them in os.environ before ownpace.join (scripts with mp.spawn)"
        )
    how = next((f"{by} has started {os.environ[n]}" for n, by in _STARTED.items() if number_in(n, 1) > 1), "")
    if not how and {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        how = "MASTER_ADDR and MASTER_PORT are set"
    if how:
        warnings.warn(f"this process trains alone, but {how}; to train together, {needed}", stacklevel=4)


def number_in(name: str, default: int | None = None) -> int:
    """The whole number that a variable holds.

    Raises:
        InputError: It holds none, and there is no default.
    """
    text = os.environ.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} is '{text}'; it must be a whole number, as torchrun sets it") from None


def default_timeout_s() -> float:
    """How long to wait for the others at the start, where the caller does not say: OWNPACE_TIMEOUT_S, if it is set.

    Raises:
        InputError: It is not a number of seconds, or too large a one.
    """
    return _seconds("OWNPACE_TIMEOUT_S", TIMEOUT_S, 0.001)


def silence_s() -> float:
    """How long a rank may not answer before it counts as gone: OWNPACE_SILENCE_S, if it is set.

    Raises:
        InputError: It is not a number of seconds, too small, or too large a one.
    """
    return _seconds("OWNPACE_SILENCE_S", SILENCE_S, 0.1)


def _seconds(name: str, default_s: float, least_s: float) -> float:
    text = os.environ.get(name, "")
    if not text:
        return default_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not least_s <= seconds <= _MOST_S:  # NaN is not, either
        raise InputError(
            f"{name} is {shown(text)}; it must be a number of seconds from {least_s:g} to {_MOST_S:,}, such as 300"
        )
    return seconds
