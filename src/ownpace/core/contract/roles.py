"""What an algorithm may ask for. An engine answers: from a virtual clock, or from real processes.

An algorithm sees itself as `me`, one of three kinds of node. It never reads a clock, opens a socket or
draws a random number. It starts things, which is an ordinary call, and awaits them, which is another act:

    sync = me.all_reduce(gradient)      # starts; does not wait
    while not sync.done:                # asks without waiting
        gradient += await me.gradient()
    total = await sync                  # waits

Whatever is handed out (gradients, parameters) is a snapshot and must not be changed in place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Protocol, TypeVar

from ownpace.core.contract.values import Address, Batch, Body, Gradient, Group, Message, Parameters

if TYPE_CHECKING:
    from torch import Tensor

T_co = TypeVar("T_co", covariant=True)
B = TypeVar("B", Gradient, "Tensor")


class Pending(Protocol[T_co]):
    """Something that was started. Await it for the result, as often as you like; the first await may wait."""

    @property
    def done(self) -> bool:
        """Whether awaiting it would return at once."""

    def __await__(self) -> Generator[object, None, T_co]: ...


class Node(Protocol):
    """What workers, servers and communicators have in common."""

    @property
    def address(self) -> Address:
        """My role, index, name and shard."""

    @property
    def training(self) -> bool:
        """Whether the run goes on, as far as this node knows from the updates it made and what it awaited.

        Nodes that have awaited the same collectives get the same answer, so none is left alone in one.
        """

    @property
    def workers(self) -> Group:
        """All workers, by rank."""

    @property
    def servers(self) -> Group:
        """All parameter servers, each with the shard it owns."""

    @property
    def communicators(self) -> Group:
        """All communicators, one per subgroup."""

    @property
    def subgroup(self) -> Group:
        """My subgroup: its workers, then its communicator if there is one."""

    def send(self, to: Address, body: Body | Pending[Gradient] = None, **notes: float) -> None:
        """Send a body, numbers by name, or both. Messages between two nodes arrive in the order of sending.

        A worker may send a gradient that is still to be computed, as in `send(server, me.gradient())`. The receiver
        gets the layers that it owns: each leaves as soon as the backward pass has it, and the message is there when all
        are.
        """

    def receive(self, sender: Address | None = None) -> Pending[Message]:
        """The next message, from any node or from `sender` alone."""

    def all_reduce(self, body: B | Pending[B], group: Group | None = None) -> Pending[B]:
        """Start the sum of what every member of `group` (default: all workers) contributes; all get it.

        A gradient may be handed over before it has been computed, as in `all_reduce(me.gradient())`, and is then
        the engine's: it may send the layers that are ready while the backward pass computes the others.
        The k-th call of each member belongs to the k-th of every other. Gradients add up as the union of
        their samples: totals, counts and notes are summed.
        """

    def reduce(self, body: B | None, to: Address, group: Group) -> Pending[B | None]:
        """As `all_reduce`, but only `to` gets the sum; the others get None. A member that passes None adds nothing."""

    def broadcast(self, body: B | None, root: Address, group: Group) -> Pending[B]:
        """Start sending `root`'s body to every member.

        The others pass None if it is a gradient, and a tensor of the same shape if it is a tensor.
        """


class Learner(Node, Protocol):
    """A node that holds parameters and an optimizer: a worker (all of them) or a server (its shard)."""

    @property
    def parameters(self) -> Parameters:
        """My parameters as they are now."""

    @property
    def lr(self) -> float:
        """The optimizer's learning rate as the schedule has it now (of the first group, where there are several)."""

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0, advance: float | None = None, memory: int = 0) -> None:
        """Commit one optimizer step with the gradient's mean: one update of the global parameters.

        A gradient of no samples changes nothing and is not an update.

        Args:
            gradient: What to step with.
            lr_scale: Multiplies the learning rate, which is the schedule's at the samples seen so far.
            advance: By how many samples the schedule goes on (None: by those of the gradient).
            memory: Which of several optimizer states to use; a server may keep one momentum per group, say.
        """

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        """What `step` would make of the parameters, without committing weights or optimizer state.

        A gradient of no samples changes nothing.
        """


class Worker(Learner, Protocol):
    """A node with data."""

    @property
    def rank(self) -> int:
        """My index among the workers."""

    @property
    def batch_size(self) -> int:
        """Samples that a worker contributes to one update, where the algorithm does not decide otherwise."""

    @property
    def micro_batch(self) -> int:
        """Samples that one `gradient()` computes, where nothing else is said."""

    @property
    def updates(self) -> int:
        """Updates of the global parameters that this node has made or got since the run began."""

    @property
    def run_samples(self) -> int | None:
        """Samples after which the run ends; None: it ends with its time, or with a script's data."""

    @property
    def waited_s(self) -> float:
        """Seconds that I have spent on awaiting sums (`all_reduce`) so far, in all. What counts is the difference."""

    @property
    def kept(self) -> dict[str, Tensor]:
        """Tensors by name that are to outlive this loop over the data: an outer momentum, say.

        They are the same on all workers, stay when a script begins another loop, and go into checkpoints.
        """

    def load(self, samples: int | None = None) -> Pending[Batch]:
        """Draw and load the next samples (default: a micro-batch), as an act of its own."""

    def gradient(
        self,
        samples: int | None = None,
        *,
        at: Parameters | None = None,
        batch: Batch | None = None,
        plus: Gradient | None = None,
    ) -> Pending[Gradient]:
        """The gradient of one micro-batch, at my parameters or at a given point, added to `plus` if that is given.

        It loads `samples` new samples first, unless `batch` brings them. Where data can end, it may be of fewer
        samples, or of none.
        """

    def no_gradient(self) -> Gradient:
        """The gradient of no samples: zero, with count zero."""

    def place(self, parameters: Parameters | Pending[Message]) -> None:
        """Overwrite my parameters (those of the shard) with what a server sent.

        A message may be handed over before it has come, as in `place(me.receive(server))`. Its layers are then put in
        their places as they arrive, and the next gradient waits for a layer only where its forward pass needs it.
        Awaiting that message waits for its notes alone, which come with its first layer. Until that gradient is there,
        `parameters` cannot be read.
        """

    def step_by_layer(
        self, total: Pending[Gradient], *, lr_scale: float = 1.0, advance: float | None = None
    ) -> Awaitable[Gradient]:
        """Make an update with a sum before all of it has come.

        As in `await me.step_by_layer(me.all_reduce(me.gradient()))`. Each layer's step is made as the layer arrives,
        and the next gradient waits for a layer only where its forward pass needs it. Awaiting this waits for what goes
        with the sum alone, which comes with its lowest layers, and returns it: samples, contributions, notes, but no
        numbers. Until that gradient is there, `parameters` should not be read: on processes that waits for the rest,
        in virtual time it is an error. The result has the same bits as that of `step(await total)`. Where a step needs
        the whole gradient (clipping, layer-wise optimizers), and in a user's own loop, all of the sum is waited for.
        """

    def local_step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        """Commit one optimizer step to my own parameters alone. It is not an update of the global ones."""

    def commit(self, values: Tensor, work: Gradient, *, ahead: Tensor | None = None) -> None:
        """Make `values` the global parameters: one update, of the samples of `work`. My optimizer keeps its state.

        Every worker commits the same values. That is how local steps end in an update. With `ahead`, I go on from there
        instead: local steps whose sum is still to come have led me away from what all have. Of no samples it
        is no update: I go back to the global parameters, unless `ahead` says otherwise.
        """

    def take_data_range(self, start: float, stop: float) -> None:
        """Draw my samples from this range of the data (0 to 1) from now on, where sampling is by shards."""


class Server(Learner, Protocol):
    """A node that owns a shard of the parameters. It lives as long as any worker does."""


class Communicator(Node, Protocol):
    """A node that only moves data, for one subgroup. It lives as long as any worker does."""
