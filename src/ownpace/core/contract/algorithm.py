"""The base of every algorithm: coroutines for the roles it has, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ownpace.core.contract.roles import Communicator, Server, Worker


class Algorithm(ABC):
    """One way of training a model on several machines.

    A subclass is a frozen, keyword-only dataclass of hyper-parameters. It writes down what each role does:
    `worker` always, `server` and `communicator` where it has them. Engines start one coroutine per node.

    Every node runs the same frozen object, so state belongs in the coroutines' local variables.
    """

    replicas_identical: ClassVar[bool] = False
    """Whether all workers hold bit-identical parameters whenever they have made the same number of updates."""

    divides_batches: ClassVar[bool] = False
    """Whether the batches of all workers are divided anew among them, so that one may get more than its own."""

    fast_servers_first: ClassVar[bool] = False
    """Whether servers with faster links own the lower layers; else layers go to servers as the fleet names them."""

    times_usual_lr: ClassVar[float] = 1.0
    """What SGD's learning rate of a task is multiplied by where a run names none: more, for few and large updates."""

    @abstractmethod
    async def worker(self, me: Worker) -> None:
        """What a worker does, from the first sample to the last."""

    async def server(self, me: Server) -> None:
        """What a parameter server does; it is ended with the last worker."""
        raise NotImplementedError

    async def communicator(self, me: Communicator) -> None:
        """What the communicator of a subgroup does; it is ended with the last worker."""
        raise NotImplementedError

    @property
    def has_servers(self) -> bool:
        """Whether this algorithm keeps its parameters on servers."""
        return type(self).server is not Algorithm.server

    @property
    def has_communicators(self) -> bool:
        """Whether each subgroup of this algorithm has a communicator."""
        return type(self).communicator is not Algorithm.communicator

    @property
    def at_work(self) -> Algorithm:
        """The algorithm that trains: this one, unless it has chosen another on the way."""
        return self

    def check(self, num_workers: int, sampling: str | None) -> None:  # noqa: B027  # most have nothing to check
        """Raise where my parameters cannot do what they say, in a run that begins with this many workers.

        In a script's own loop, which deals the data out itself, `sampling` is None. A run that goes on with another
        number of workers is not asked again.

        Raises:
            InputError: They cannot; the message says which, and what to give instead.
        """

    def micro_batch(self, batch_size: int, given: int | None, num_workers: int) -> int:
        """Samples that one `gradient()` computes at most: as given, else all that a worker contributes to an update."""
        most = batch_size * num_workers if self.divides_batches else batch_size
        return most if given is None else min(given, most)

    def remark(self, updates: int) -> str | None:
        """What users should know of a run that made this many updates, in one line, if there is something."""
        return None

    def subgroups(self, num_workers: int) -> tuple[tuple[int, ...], ...]:
        """How the workers' ranks divide into subgroups. By default they are one."""
        return (tuple(range(num_workers)),)

    def subgroups_at(self, sites: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The same where it matters at which site each rank is. By default it does not."""
        return self.subgroups(len(sites))
