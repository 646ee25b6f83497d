"""Keeps books on what an algorithm does to parameters, from outside of every engine: it stands between them.

Nodes are handed to an algorithm as they are, but for three calls. Each `step` and `commit` is entered in the books; and
where weights are to count samples, it is made to: the gradient's scale is taken out (learning-rate rules, weights for
staleness), and an average of what workers did alone is replaced by the sum of it, after a check that it was an average.
So weights travel through servers, sums, deaths and checkpoints as they always do, and say at the end what they are of.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.events import Event, Fault, Generation
from ownpace.core.contract.roles import Learner, Pending, Server, Worker
from ownpace.core.contract.values import Gradient, Group, Parameters, Sources
from ownpace.engines.virtual.worker import VirtualWorker
from ownpace.testing.torture.subjects import TortureSubject

NEAR = 1e-3
"""What is closer than this to a whole number is one, up to rounding."""


@dataclass(frozen=True)
class UpdateEntry:
    """One update, as one learner made it."""

    mean: Tensor
    samples: int
    lr_scale: float
    memory: int
    sources: Sources


@dataclass
class Books:
    """What was done to the parameters in one run."""

    subject: TortureSubject
    width: int | None
    """Of a layer, where weights count samples."""
    generation: int = 1
    updates: dict[tuple[int, int], UpdateEntry] = field(default_factory=dict)
    """The latest update by shard and version: one that died with its node is overwritten by what came in its place."""
    reached: dict[str, int] = field(default_factory=dict)
    """The latest version of each learner that holds the parameters."""
    began: dict[int, list[tuple[str, int, Tensor]]] = field(default_factory=lambda: defaultdict(list))
    """By generation, the version and the values that its workers began with."""
    ended: dict[int, list[tuple[str, int, Tensor]]] = field(default_factory=lambda: defaultdict(list))
    """The same for those that came to their end."""
    complaints: list[str] = field(default_factory=list)
    """What was wrong at first sight."""
    lost: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By generation, how many updates of before it began without."""
    _same: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)
    _counted: tuple[Gradient, Gradient] | None = None
    _alone: dict[tuple[int, int], dict[tuple[int, ...], Tensor]] = field(default_factory=lambda: defaultdict(dict))
    """By generation and version: what nodes, by their ranks, did alone since."""
    _kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """By version, what workers keep."""
    _starts: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def copy(self) -> Books:
        """The books as they are now, to go on with from a checkpoint."""
        other = Books(self.subject, self.width, self.generation, dict(self.updates), dict(self.reached))
        other._kept.update(self._kept)
        other.began.update({number: list(begun) for number, begun in self.began.items()})
        return other

    def hear(self, event: Event) -> None:
        """Take in what happens in the run."""
        if isinstance(event, Generation):
            self.generation = event.number
            self._forget(0, event.updates)
        elif isinstance(event, Fault) and event.what in ("kill", "cut"):
            # What it alone has reached may be lost with it.
            self.reached.pop(event.who, None)

    def begin(self, learner: Learner, *, holds: bool) -> None:
        """A learner begins its coroutine; it may hold the parameters, or get them from servers."""
        name, version = learner.address.name, learner.parameters.version
        if learner.address.role == "worker":
            self.began[self.generation].append((name, version, learner.parameters.values.clone()))
        if not holds:
            return
        if learner.address.role == "worker":
            self._check_kept(cast(Worker, learner))
        if version < self.reached.get(name, 0):
            self.complain(f"{name} had made update {self.reached[name]}, and goes on from {version}")
        self.reached[name] = version
        self._forget(learner.address.shard.index, version)

    def _forget(self, shard: int, version: int) -> None:
        gone = [key for key in self.updates if key[0] == shard and key[1] > version]
        self.lost[self.generation] += len(gone)
        for key in gone:
            del self.updates[key]

    def complain(self, what: str) -> None:
        """Note something that must not be."""
        if len(self.complaints) < 5:
            self.complaints.append(what)

    def counted(self, gradient: Gradient) -> Gradient:
        """The gradient whose mean says how often it holds each sample, whatever it was scaled by."""
        if self.width is None or not gradient.samples:
            return gradient
        # Workers in lock-step get one sum: they must go on getting one, as they share the step that they take with it.
        if self._counted is None or self._counted[0] is not gradient:
            rows = gradient.total.view(-1, self.width)
            counts = rows * (gradient.samples / rows[:, -1:])
            whole = counts.round()
            if not torch.allclose(counts, whole, atol=NEAR) or bool((whole[:, :-1].sum(1) != gradient.samples).any()):
                self.complain(f"a gradient of {gradient.samples} samples holds {_row(counts)} of them")
            self._counted = gradient, gradient.with_mean(whole.reshape(-1))
        return self._counted[1]

    def enter(self, learner: Learner, gradient: Gradient, lr_scale: float, memory: int) -> None:
        """An update has been made."""
        version, shard = learner.parameters.version, learner.address.shard.index
        first = self._same.setdefault((self.generation, shard, version), gradient.total)
        if first is not gradient.total and not torch.equal(first, gradient.total):
            self.complain(f"{learner.address.name} makes update {version} of another gradient than the others")
        self.updates[shard, version] = UpdateEntry(
            gradient.mean.clone(), gradient.samples, lr_scale, memory, gradient.sources
        )
        self.reached[learner.address.name] = version
        if learner.address.role == "worker":
            kept = cast(Worker, learner).kept
            self._kept[version] = {key: value.clone() for key, value in kept.items()}

    def alone(self, me: Worker, gradient: Gradient, version: int) -> None:
        """A worker is about to take a step alone, which is to be part of the update after this version."""
        key = self.generation, version
        self._starts.setdefault(key, me.parameters.values)
        # The workers of one node take their steps together: what they did counts once.
        ranks = tuple(rank for rank, _ in gradient.sources) or (me.rank,)
        if me.rank == ranks[0]:
            done = self._alone[key]
            done[ranks] = done[ranks] + gradient.mean if ranks in done else gradient.mean

    def committed(self, me: Worker, values: Tensor) -> Tensor:
        """The sum of what all did alone, in the place of their average."""
        key = self.generation, me.parameters.version
        if self.width is None or key not in self._starts:
            return values
        start = self._starts[key]
        return start - self.summed(me.parameters.version, start - values)

    def summed(self, version: int, moved: Tensor) -> Tensor:
        """The sum of what all did alone, after a check that its average is what was moved by."""
        done = torch.stack(list(self._alone[self.generation, version].values()))
        weight = self.subject.total_weight
        if weight is not None:
            self._check_average(moved, done, weight)
        return done.sum(0)

    def of_one(self, version: int, rank: int) -> Tensor | float:
        """What one worker did alone so far, for the update after this version."""
        return self._alone[self.generation, version].get((rank,), 0.0)

    def _check_kept(self, me: Worker) -> None:
        """Whether what an algorithm keeps is what it kept at this version."""
        kept = self._kept.get(me.parameters.version, {})
        if any(key not in me.kept or not torch.equal(me.kept[key], value) for key, value in kept.items()):
            self.complain(f"{me.address.name} goes on without what was kept at update {me.parameters.version}")

    def _check_average(self, moved: Tensor, done: Tensor, weight: float) -> None:
        """Whether a move is a sum of what nodes did, with weights that add up to this."""
        solution = torch.linalg.lstsq(done.T.double(), moved[:, None].double(), driver="gelsd").solution[:, 0]
        if not torch.allclose(solution @ done.double(), moved.double(), atol=0.01):
            self.complain("an average is of something else than what its workers did alone")
        if abs(float(solution.sum()) - weight) > 0.01:
            self.complain(f"the weights of an average add up to {float(solution.sum()):.3f}, not to {weight:g}")


def _row(counts: Tensor) -> str:
    odd = counts[0, :-1][counts[0, :-1] != 0][:6]
    return ", ".join(f"{value:.3g}" for value in odd.tolist())


class Audited:
    """A node as it is, but for what the books want to know."""

    def __init__(self, me: Learner, books: Books) -> None:
        self._me = me
        self._books = books

    def __getattr__(self, name: str) -> Any:
        return getattr(self._me, name)

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0, advance: float | None = None, memory: int = 0) -> None:
        """Make the update, and enter it."""
        counted = self._books.counted(gradient)
        if counted is not gradient:
            lr_scale = 1.0
        before = self._me.parameters.version
        self._me.step(counted, lr_scale=lr_scale, advance=advance, memory=memory)
        if self._me.parameters.version > before:
            self._books.enter(self._me, counted, lr_scale, memory)

    async def step_by_layer(
        self, total: Pending[Gradient], *, lr_scale: float = 1.0, advance: float | None = None
    ) -> Gradient:
        """Make the update before all of its layers have come, and enter it."""
        me = cast(VirtualWorker, self._me)
        gradient = await me.sum_by_layer(total)
        self.step(gradient, lr_scale=lr_scale, advance=advance)
        me.expect_layers(total)
        return me.simulation.said(gradient)

    def local_step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        """Take a step alone, and note what it was made of."""
        me = cast(Worker, self._me)
        counted = self._books.counted(gradient)
        if counted is not gradient:
            self._books.alone(me, counted, self._version)
            lr_scale = 1.0
        me.local_step(counted, lr_scale=lr_scale)

    @property
    def _version(self) -> int:
        """The version that what is done alone now is to be added to."""
        return self._me.parameters.version

    def commit(self, values: Tensor, work: Gradient) -> None:
        """Make the update, and enter it."""
        me = cast(Worker, self._me)
        before = me.parameters.version
        me.commit(self._books.committed(me, values), work)
        if me.parameters.version > before:
            self._books.enter(me, work, 1.0, 0)


class AuditedAhead(Audited):
    """A worker that goes on while the sum of what it did is under way.

    It holds its own work since, besides the global parameters, which are sums here. So it is shown its parameters as
    they would be with averages.
    """

    def __init__(self, me: Worker, books: Books) -> None:
        super().__init__(me, books)
        self._begun = me.parameters.version
        self._handed_in = 0
        self._global = self._shown = me.parameters.values
        self._apart: Tensor | None = None
        """What it is shown, less what it holds."""

    @property
    def parameters(self) -> Parameters:
        """As the algorithm has them."""
        held = self._me.parameters
        if self._apart is None:
            return held
        return Parameters(held.values + self._apart, held.version, held.shard)

    @property
    def _version(self) -> int:
        # Sums are handed in one after the other, and each makes one update.
        return self._begun + self._handed_in

    def all_reduce(self, body: Gradient, group: Group | None = None) -> Pending[Gradient]:
        """Hand in what was done so far; what follows belongs to the next update."""
        self._handed_in += 1
        return self._me.all_reduce(body, group)

    def commit(self, values: Tensor, work: Gradient, *, ahead: Tensor | None = None) -> None:
        """Make the update, and enter it."""
        me, books = cast(Worker, self._me), self._books
        if not work.samples:
            me.commit(values, work, ahead=ahead)
            return
        if books.width is None:
            me.commit(values, work, ahead=ahead)
        else:
            total = self._global - books.summed(me.parameters.version, self._shown - values)
            self._global, self._shown = total, values
            if ahead is None:
                me.commit(total, work)
                self._apart = values - total
            else:
                held = total - books.of_one(self._version, me.rank)
                me.commit(total, work, ahead=held)
                self._apart = ahead - held
        books.enter(me, work, 1.0, 0)


def audited(algorithm: Algorithm, books: Books) -> Algorithm:
    """The same algorithm, with books kept on it."""

    async def worker(self: Algorithm, me: Worker) -> None:
        generation = books.generation
        books.begin(me, holds=not algorithm.has_servers)
        node = AuditedAhead(me, books) if books.subject.goes_on else Audited(me, books)
        await algorithm.worker(cast(Worker, node))
        books.ended[generation].append((me.address.name, me.parameters.version, me.parameters.values))

    async def server(self: Algorithm, me: Server) -> None:
        books.begin(me, holds=True)
        await algorithm.server(cast(Server, Audited(me, books)))

    twin = copy.copy(algorithm)
    methods: dict[str, Any] = {"worker": worker, "__slots__": ()}
    # Having servers is having this method.
    if type(algorithm).server is not Algorithm.server:
        methods["server"] = server
    twin_class = type(type(algorithm).__name__, (type(algorithm),), methods)
    object.__setattr__(twin, "__class__", twin_class)
    return twin
