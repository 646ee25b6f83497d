"""The drop-in: a user's own training loop answers what an algorithm asks for.

    with ownpace.join(algorithm="balanced") as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        for x, y in fleet.batches(dataset, batch_size=64, epochs=5):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

The algorithm is the same coroutine that a complete run drives. When it asks for a gradient it is suspended;
`fleet.batches` hands out as many samples as it asked for, and `optimizer.step()` brings it their gradient and lets it
go on (to sum, wait, step) until it asks for the next.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ownpace.algorithms import DEFAULT, make_algorithm
from ownpace.core.contract import events
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, Interrupted, OwnpaceError, unknown
from ownpace.core.learning.flat import Layout
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.core.settings import positive
from ownpace.engines.job import OnProgress
from ownpace.engines.process.node.loop_worker import LoopWorker
from ownpace.engines.process.node.nodes import shared_counter
from ownpace.engines.process.node.parameters import UserHolding
from ownpace.engines.process.node.task_worker import Stopwatch
from ownpace.engines.process.run.hub import Hub, Rules
from ownpace.engines.process.run.launch import backend_for
from ownpace.engines.process.run.member import (
    Membership,
    OptimizerCopy,
    Terms,
    end_worker,
    fingerprint,
    introduce,
    share_parameters,
)
from ownpace.engines.process.run.rendezvous import (
    LOOPBACK,
    TIMEOUT_S,
    Environment,
    Meeting,
    common_backend,
    local_store,
    meet,
)
from ownpace.engines.process.run.torchrun import Company
from ownpace.engines.process.talk.counters import Counters
from ownpace.engines.process.talk.mailbox import RunKey
from ownpace.engines.roster import HUB
from ownpace.fleet import ServerMachine
from ownpace.report.summary import Summary, SummaryBuilder

T = TypeVar("T")
_SAMPLINGS = ("queue", "iid", "shards")
_COUNTS = (torch.int32, torch.int64)


def join(
    algorithm: str | Algorithm = DEFAULT,
    *,
    parameters: Mapping[str, Any] | None = None,
    servers: int | Sequence[int] = 1,
    backend: str | None = None,
    seed: int = 0,
    detail: bool = False,
    on_event: events.Emit | None = None,
    on_progress: OnProgress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Joined:
    """Join the other processes that torchrun started; alone, be a fleet of one.

    Args:
        algorithm: A name (`ownpace list` describes them) or an algorithm of your own.
        parameters: Those of the algorithm of that name.
        servers: Where the algorithm has parameter servers: how many, on the first host; or the host of each.
        backend: `gloo` or `nccl` (None: nccl where every worker of a host has a card of its own).
        seed: Of the order of the samples.
        detail: Record every computation, transfer and wait, not only sums.
        on_event: Gets every event, on rank 0 (`core.events`).
        on_progress: Called now and then on rank 0 with samples, paces and busy shares.
        timeout_s: How long to wait for the others at the start.
    """
    if isinstance(algorithm, str):
        algorithm = make_algorithm(algorithm, parameters)
    if backend not in (None, "gloo", "nccl"):
        raise unknown("backend", str(backend), ("gloo", "nccl"))
    hosts = [0] * servers if isinstance(servers, int) else list(servers)
    positive(servers=len(hosts), timeout_s=timeout_s)
    return Joined(algorithm, hosts, backend, seed, detail, on_event, on_progress, timeout_s)


class Joined:
    """This process as a worker of the fleet. Use it as a context manager."""

    def __init__(
        self,
        algorithm: Algorithm,
        hosts: Sequence[int],
        backend: str | None,
        seed: int,
        detail: bool,
        on_event: events.Emit | None,
        on_progress: OnProgress | None,
        timeout_s: float,
    ) -> None:
        self._algorithm = algorithm
        self._hosts = hosts
        self._backend = backend
        self._seed = seed
        self._detail = detail
        self._on_event = on_event
        self._on_progress = on_progress
        self._environment = Environment.read() or Environment(0, 1, 0, 1, 0, 1)
        self._timeout_s = timeout_s
        self._alone = Environment.read() is None
        self._builder = SummaryBuilder()
        self._node: LoopWorker | None = None
        self._model: nn.Module | None = None
        self._segments = 0
        self._over = False
        self._counters: Counters | None = None
        self.summary: Summary | None = None
        """The run in numbers, once it is over."""

    @property
    def rank(self) -> int:
        """My number among the workers, from 0."""
        return self._environment.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._environment.world_size

    # ---- coming and going ----

    def __enter__(self) -> Joined:
        if self._alone:
            store, port = local_store()
            self._store: Any = store
            self._meeting = Meeting(LOOPBACK, port, "", RunKey.new().secret, LOOPBACK, "gloo", self._timeout_s)
            self._store = self._meeting.open_store()
            self._base = store
        else:
            self._store, self._meeting = meet(self._environment, self._timeout_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._node is None:
            return
        company, membership = self._company, self._membership
        self._over = error is not None
        try:
            if error is not None:
                membership.complain(error)
                company.close(error if isinstance(error, OwnpaceError) else None)
                return
            if self._node.wanting:  # the loop was left, and somebody still holds its iterator
                self._node.tell_to_stop()
                self._node.finish_segment()
                self._agree()
            for line in end_worker(self._node):
                self._builder.take(events.from_line(line))
            failed = company.close()
            self.summary = self._builder.summary()
            if failed is not None:
                raise failed
        finally:
            self._over = True
            self._signals.__exit__(None, None, None)
            if self._counters is not None:
                self._counters.close()
            self._node.close()
            company.__exit__()
            membership.post.close(now=error is not None)

    # ---- what a script calls ----

    def wrap(
        self, model: nn.Module, optimizer: Optimizer, *, clip_norm: float | None = None, overlap: bool = False
    ) -> tuple[Any, Any]:
        """Make a model and its optimizer those of the fleet; they are the same objects.

        Args:
            model: Any module. Its parameters become views of one flat vector, and begin as those of rank 0.
            optimizer: Any torch optimizer over all trainable parameters of the model.
            clip_norm: Clip the norm of the *summed* gradient to this, before each step.
            overlap: Send each layer's gradient while the backward pass is still at the others, where the algorithm
                allows it. Faster; but then each batch needs its own `optimizer.step()`, and nothing may change the
                gradients between `backward()` and `step()`: that is refused, not ignored.
        """
        if self._model is not None:
            raise InputError("wrap was called twice; a fleet trains one model")
        positive(clip_norm=clip_norm)
        if getattr(optimizer.step, "_of_a_fleet", False):
            del optimizer.step  # of a fleet before this one
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        layout = Layout(model)
        theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        missing = [layer.name for layer, p in zip(layout.layers, parameters, strict=True) if id(p) not in theirs]
        if missing or len(theirs) != len(parameters):
            what = f"lacks {missing[0]}" if missing else f"has {len(theirs)} parameters, the model {len(parameters)}"
            raise InputError(f"the optimizer and the model do not fit: it {what}; make it of model.parameters()")
        flat = torch.cat([layer.flatten(p.detach()) for layer, p in zip(layout.layers, parameters, strict=True)])
        for parameter, view in zip(parameters, layout.views(flat), strict=True):
            parameter.data = view
        self._model = model
        self._holding = UserHolding(flat, layout, parameters, optimizer, clip_norm)
        self._overlap = overlap
        self._layout = layout
        fleet = self

        def step(self: Optimizer, closure: object = None) -> None:
            if closure is not None:
                raise InputError(
                    "optimizer.step was given a closure; compute the gradient before, as in loss.backward()"
                )
            self._opt_called = True  # type: ignore[attr-defined]
            fleet._stepped()

        # What torch's schedulers look for, to warn of a step that they do not see; this one is seen.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        step._of_a_fleet = True  # type: ignore[attr-defined]
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
        # A GradScaler is to undo its scale, and to look for infinities, before the gradient goes to the others.
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        return model, optimizer

    def batches(
        self, dataset: Any, batch_size: int, *, epochs: int = 1, sampling: str = "queue", **loader: Any
    ) -> Iterator[Any]:
        """Batches of a map-style dataset, as many samples in each as the algorithm asks for.

        Every worker runs this loop; each takes what it can. It ends on all workers when the last sample has been
        learnt from; `break` ends it for all. It may be called again, say once an epoch.

        Args:
            dataset: Anything with `__len__` and `__getitem__`, the same on every worker.
            batch_size: Samples that each worker contributes to an update, where the algorithm does not decide.
            epochs: How often to go through the data.
            sampling: `queue`: every sample exactly once an epoch, at any pace; `iid`: with replacement; `shards`: each
                worker its own equal share.
            **loader: For torch's DataLoader: num_workers, collate_fn, pin_memory …
        """
        if self._model is None:
            raise InputError("fleet.batches needs a model; call fleet.wrap(model, optimizer) before it")
        if sampling not in _SAMPLINGS:
            raise unknown("sampling", sampling, _SAMPLINGS)
        positive(batch_size=batch_size, epochs=epochs)
        total = epochs * len(dataset)
        if self._node is None:
            self._open(len(dataset), batch_size, epochs, sampling)
        assert self._node is not None
        if self._node.wanting:
            raise InputError("fleet.batches was called within a loop over fleet.batches; end that loop before")
        self._segments += 1
        source = Source(self, dataset, sampling, epochs, self._segments)
        self._node.begin(self._algorithm, batch_size, total, self._count("ended"), self._count("stopped"))
        return self._hand_out(source, dataset, loader)

    def _hand_out(self, source: Source, dataset: Any, loader: Mapping[str, Any]) -> Iterator[Any]:
        node = self._node
        assert node is not None
        finished = False
        node.in_loop = True
        try:
            for batch in DataLoader(dataset, batch_sampler=source, **loader):
                samples = source.sizes.pop(0)
                if not node.wanting:
                    break  # the run was stopped
                node.hand_out(samples)
                yield batch
            finished = True
        finally:
            node.in_loop = False
            if not self._over and not node.broken:
                if not finished:
                    node.tell_to_stop()
                node.finish_segment()
                self._agree()
        if self._company.stops and node.rank == 0:
            raise Interrupted("interrupted; the model is as far as it came")

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        """Call `judge(model)` with the global parameters as they are now, in evaluation mode and without gradients.

        Only this worker evaluates; nobody waits for it, so it may be called at any time and by any worker.
        """
        if self._model is None:
            raise InputError("fleet.evaluate needs a model; call fleet.wrap(model, optimizer) before it")
        node, model = self._node, self._model
        were_training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            with torch.no_grad():
                if node is None or self._over:
                    return judge(model)
                with node.at_global_parameters():
                    return judge(model)
        finally:
            for module in were_training:
                module.training = True

    def _stepped(self) -> None:
        if self._node is None or not self._node.in_loop:
            raise InputError("optimizer.step was called outside of fleet.batches; take the batches from it")
        self._node.take_gradient()

    # ---- behind it ----

    def _open(self, num_samples: int, batch_size: int, epochs: int, sampling: str) -> None:
        """Start the run: servers, the hub on rank 0, and this worker's place in it."""
        environment, holding = self._environment, self._holding
        device = holding.values.device
        able = self._backend or backend_for(self._algorithm, device, environment.local_world_size)
        backend = common_backend(self._store, environment, able)
        self._meeting = meeting = replace(self._meeting, backend=backend)
        num_servers = len(self._hosts) if self._algorithm.has_servers else 0
        if num_servers and any(holding.optimizer.state.values()):
            raise InputError(
                "the optimizer has made steps before (a checkpoint?), and its state cannot go to parameter servers; "
                "begin with a new optimizer, or use an algorithm without servers, such as pace"
            )
        terms = Terms(
            algorithm=self._algorithm,
            workers=tuple(f"worker-{rank}" for rank in range(environment.world_size)),
            num_servers=num_servers,
            layers=self._layout.layers,
            dtype=str(holding.values.dtype).removeprefix("torch."),
            optimizer=OptimizerCopy.of(holding.optimizer, holding.parameters),
            samples=None,
            seconds=None,
            eval_every=None,
            detail=self._detail,
        )
        roll = terms.roll()
        hub: Hub | None = None
        if environment.rank == 0:
            header = events.Run(
                algorithm=type(self._algorithm).__name__,
                engine="process",
                task="",
                model=type(self._model).__name__,
                seed=self._seed,
                batch_size=batch_size,
                micro_batch=batch_size,
                num_parameters=self._layout.size,
                parameter_bytes=holding.values.nbytes,
                samples=None,
                target=None,
                groups=roll.names(),
            )
            rules = Rules(header, self._algorithm.replicas_identical, limit_samples_per_s=None)
            post = Membership(HUB, meeting).post
            hub = Hub(post, roll, rules, self._on_event or _ignore, self._on_progress, None)
        places = tuple(ServerMachine(host=host) for host in self._hosts)
        self._company = Company(environment, roll, terms, meeting, hub, places)
        self._signals = self._company.signals()
        self._signals.__enter__()
        address = roll.workers.members[environment.rank]
        self._membership = membership = Membership(address.name, meeting, self._store)
        seat = membership.seat(
            terms,
            roll,
            address,
            holding.values[:0],
            leads=False,
            alarms=self._company.alarms,
            stops=self._company.stops,
        )
        stopwatch = Stopwatch(holding.values.device, membership.clock)
        self._node = node = LoopWorker(seat, holding, batch_size, stopwatch, overlap=self._overlap)
        alike = {"number of samples": num_samples, "sampling": sampling, "epochs": epochs}
        alike |= {"seed": self._seed, "clip_norm": holding.clip_norm}
        introduce(node, fingerprint(terms, "") | {name: str(value) for name, value in alike.items()})
        self._counters = Counters(self._store, first=self.rank == 0, spans_hosts=environment.spans_hosts)
        share_parameters(node)
        assert self._model is not None
        buffers = [buffer for buffer in self._model.buffers() if buffer.numel()]
        node.wait_for(node.ring(node.workers).broadcast(buffers, 0), "workers")
        membership.start_together(node, spans_hosts=environment.spans_hosts)
        self._counters.forget_path()

    def _agree(self) -> None:
        """After the last sample: everybody has the global parameters, and the mean of all running statistics.

        Of counts (how many batches a BatchNorm has seen), everybody has the largest.
        """
        node, model = self._node, self._model
        assert node is not None
        assert model is not None
        if node.servers:  # who stopped first waits for the others' last gradients
            node.wait_for(node.ring(node.workers).all_reduce_tensors([node.holding.values.new_zeros(1)]), "workers")
        node.pull()
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point() and buffer.numel()]
        if buffers and self.num_workers > 1:
            sums = [buffer.detach() / self.num_workers for buffer in buffers]
            node.wait_for(node.ring(node.workers).all_reduce_tensors(sums), "workers")
            for buffer, total in zip(buffers, sums, strict=True):
                buffer.copy_(total)
        counts = [buffer for buffer in model.buffers() if buffer.dtype in _COUNTS and buffer.numel()]
        if counts and self.num_workers > 1:  # of these, the largest
            places = [buffer.new_zeros((self.num_workers, *buffer.shape)) for buffer in counts]
            for buffer, place in zip(counts, places, strict=True):
                place[self.rank] = buffer
            node.wait_for(node.ring(node.workers).all_reduce_tensors(places), "workers")
            for buffer, place in zip(counts, places, strict=True):
                buffer.copy_(place.amax(0))

    def _count(self, what: str) -> Callable[[int], int]:
        """A count that all workers share in one loop over the data."""
        return shared_counter(self._store, f"{what}/{self._segments}")


class Source:
    """Which samples this worker gets next: a batch sampler for torch's DataLoader."""

    def __init__(self, fleet: Joined, dataset: Any, sampling: str, epochs: int, segment: int) -> None:
        self._node = fleet._node
        self._size = len(dataset)
        self._epochs = epochs
        assert fleet._counters is not None
        self._take = fleet._counters.taking(segment)
        self.sizes: list[int] = []
        """Of the batches that were drawn and not handed out yet."""
        self._total = epochs * self._size
        seed, rank = fleet._seed, fleet.rank
        self._draw = self._from_queue
        self._order = Permutations(self._size, seed, Purpose.LOOP_QUEUE, segment)
        if sampling == "iid":
            self._generator = torch.Generator().manual_seed(seed_for(seed, Purpose.LOOP_IID, segment, rank))
            self._draw = self._with_replacement
        elif sampling == "shards":
            self._share = (
                Permutations(self._size, seed, Purpose.SHARDS)
                .indices(0, self._size)
                .tensor_split(fleet.num_workers)[rank]
            )
            self._order = Permutations(max(1, len(self._share)), seed, Purpose.LOOP_SHARD_ORDER, segment, rank)
            self._mine = 0
            self._draw = self._from_share

    def __iter__(self) -> Iterator[list[int]]:
        assert self._node is not None
        while indices := self._draw(max(1, self._node.wanted_samples)):
            self.sizes.append(len(indices))
            yield indices

    def _from_queue(self, samples: int) -> list[int]:
        start = min(self._take(samples), self._total)
        return self._order.indices(start, min(samples, self._total - start)).tolist() if start < self._total else []

    def _with_replacement(self, samples: int) -> list[int]:
        left = self._total - min(self._take(samples), self._total)
        return torch.randint(self._size, (min(samples, left),), generator=self._generator).tolist()

    def _from_share(self, samples: int) -> list[int]:
        samples = min(samples, self._epochs * len(self._share) - self._mine)
        if samples <= 0:
            return []
        start, self._mine = self._mine, self._mine + samples
        indices: list[int] = self._share[self._order.indices(start, samples)].tolist()
        return indices


def _ignore(event: events.Event) -> None:
    pass


__all__ = ["Joined", "join"]
