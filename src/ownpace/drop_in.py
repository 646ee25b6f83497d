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

import math
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ownpace.algorithms import DEFAULT, make_algorithm
from ownpace.core import events
from ownpace.core.algorithm import Algorithm
from ownpace.core.asking import Pending
from ownpace.core.errors import InputError, Interrupted, OwnpaceError, unknown
from ownpace.core.flat import Layout
from ownpace.core.sampling import Permutations, derive
from ownpace.core.settings import positive
from ownpace.core.values import Batch, Gradient, Group, Parameters, Shard
from ownpace.engines.job import OnProgress
from ownpace.engines.process.collectives import Departures, Ring
from ownpace.engines.process.counter import Counters
from ownpace.engines.process.hub import Hub, Rules
from ownpace.engines.process.meeting import LOOPBACK, TIMEOUT_S, Environment, Meeting, local_store, meet
from ownpace.engines.process.member import (
    Membership,
    OptimizerCopy,
    Terms,
    end_worker,
    fingerprint,
    introduce,
    share_parameters,
)
from ownpace.engines.process.nodes import ProcessWorker, Seat, shared_counter
from ownpace.engines.process.pending import Reduced
from ownpace.engines.process.post import RunKey
from ownpace.engines.process.ranks import Company
from ownpace.engines.process.roll import HUB
from ownpace.engines.process.wire import Packet
from ownpace.engines.process.worker import Stopwatch, check_finite
from ownpace.fleet import ServerMachine
from ownpace.report.summary import Summary, SummaryBuilder

T = TypeVar("T")
_SAMPLINGS = ("queue", "iid", "shards")
_NOTHING_LEFT_S = 0.002
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
            self._store, self._meeting = meet(self._environment, "gloo", self._timeout_s)
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
            self._open(len(dataset), batch_size)
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
            if not self._over:
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

    def _open(self, num_samples: int, batch_size: int) -> None:
        """Start the run: servers, the hub on rank 0, and this worker's place in it."""
        environment, holding = self._environment, self._holding
        device = holding.values.device
        backend = self._backend
        if backend is None:
            own_cards = device.type == "cuda" and torch.cuda.device_count() >= environment.local_world_size > 1
            backend = "nccl" if own_cards else "gloo"
        self._meeting = meeting = replace(self._meeting, backend=backend)
        num_servers = len(self._hosts) if self._algorithm.has_servers else 0
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
        introduce(node, {**fingerprint(terms, ""), "number of samples": str(num_samples)})
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
            sums = [buffer.detach().clone() for buffer in buffers]
            node.wait_for(node.ring(node.workers).all_reduce_tensors(sums), "workers")
            for buffer, total in zip(buffers, sums, strict=True):
                buffer.copy_(total / self.num_workers)
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
        self._order = Permutations(self._size, seed, 6, segment)
        if sampling == "iid":
            self._generator = torch.Generator().manual_seed(derive(seed, 7, segment, rank))
            self._draw = self._with_replacement
        elif sampling == "shards":
            self._share = Permutations(self._size, seed, 2).indices(0, self._size).tensor_split(fleet.num_workers)[rank]
            self._order = Permutations(max(1, len(self._share)), seed, 8, segment, rank)
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


class UserHolding:
    """The user's model and optimizer: the parameters are views of one vector, which is updated in place."""

    def __init__(
        self,
        flat: Tensor,
        layout: Layout,
        parameters: Sequence[nn.Parameter],
        optimizer: Optimizer,
        clip_norm: float | None,
    ) -> None:
        self.values = flat
        self.parameters = parameters
        self.optimizer = optimizer
        self._layout = layout
        self._clip_norm = clip_norm
        self._inner_step = optimizer.step
        self._mean: Tensor | None = None

    def gather(self, samples: int, out: Tensor | None) -> Tensor:
        """The sum over the samples of their gradients, out of the `.grad`s, which hold the mean."""
        total = torch.empty_like(self.values) if out is None else out
        for parameter, view in zip(self.parameters, self._layout.views(total), strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                torch.mul(parameter.grad, samples, out=view)
        return total

    def clip(self, total: Tensor, samples: int) -> None:
        """Clip the norm of the mean, where the user wants it, in place."""
        if self._clip_norm is not None:
            norm = float(torch.linalg.vector_norm(total)) / samples
            if norm > self._clip_norm:
                total *= self._clip_norm / norm

    def snapshot(self) -> Tensor:
        return self.values.clone()

    def step(self, gradient: Gradient, lr_factor: float, memory: int = 0) -> None:
        assert memory == 0, "a user's optimizer has one state"
        mean = self._mean = torch.div(gradient.total, gradient.samples, out=self._mean)
        self.clip(mean, 1)
        for parameter, view in zip(self.parameters, self._layout.views(mean), strict=True):
            parameter.grad = view
        own = [group["lr"] for group in self.optimizer.param_groups]
        rates = [rate * lr_factor for rate in map(_agreed, own, gradient.rates or own)]
        if rates != own:
            self._set_rates(rates)
        self._inner_step()
        if rates != own:
            self._set_rates(own)

    def _set_rates(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def peek(self, gradient: Gradient, lr_factor: float) -> Tensor:
        values, state = self.values.clone(), self.optimizer.state
        self.optimizer.state = type(state)(
            dict, {p: {k: v.clone() if isinstance(v, Tensor) else v for k, v in s.items()} for p, s in state.items()}
        )
        self.step(gradient, lr_factor)
        self.optimizer.state = state
        peeked = self.values.clone()
        self.values.copy_(values)
        return peeked

    def place(self, values: Tensor, shard: Shard) -> None:
        self.values[shard.start : shard.stop] = values

    def overwrite(self, values: Tensor) -> None:
        self.values.copy_(values)

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def rates(self) -> Sequence[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def set_rates(self, rates: Sequence[float]) -> None:
        self._set_rates(rates)


class Wanted:
    """A gradient that the algorithm waits for, and the user's loop will bring."""

    def __init__(self, node: LoopWorker, samples: int, at: Parameters | None, plus: Gradient | None) -> None:
        self._node = node
        self.samples = samples
        self.at = at
        self.plus = plus
        self.versions = node.versions_at(at)
        self.gradient: Gradient | None = None
        self.reduce_in: Group | None = None
        """The group in which it is to be summed as soon as it is there."""

    @property
    def done(self) -> bool:
        return self.gradient is not None

    def __await__(self) -> Generator[Any, Any, Gradient]:
        while self.gradient is None:
            yield self
        return self.gradient


class WantedSum:
    """A sum that begins when the user's loop has brought this worker's gradient."""

    def __init__(self, node: LoopWorker, wanted: Wanted) -> None:
        self._node = node
        self._wanted = wanted
        self.reduced: Reduced | None = None

    @property
    def done(self) -> bool:
        return self.reduced is not None and self.reduced.done

    def __await__(self) -> Generator[Any, Any, Gradient]:
        yield from self._wanted.__await__()
        assert self.reduced is not None
        total: Gradient = yield from self.reduced.__await__()
        return total


class LoopWorker(ProcessWorker):
    """A worker whose gradients come from a user's loop."""

    def __init__(
        self, seat: Seat, holding: UserHolding, batch_size: int, stopwatch: Stopwatch, *, overlap: bool
    ) -> None:
        super().__init__(seat, holding, batch_size, batch_size)
        self._sending: Sending | None = None
        self._overlap = overlap
        if overlap:
            for index, parameter in enumerate(holding.parameters):
                parameter.register_post_accumulate_grad_hook(partial(self._layer_is_there, index))
        self._user = holding
        self._stopwatch = stopwatch
        self._wanted: Wanted | None = None
        self._sum: WantedSum | None = None
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._handed_out = 0
        self._begun_s = 0.0
        self._true: Tensor | None = None
        self.in_loop = False
        """Whether the user's loop runs."""
        self._ended: Callable[[int], int] = _uncounted
        self._stopped: Callable[[int], int] = _uncounted
        self._said_to_stop = False

    # ---- what the algorithm asks for ----

    def load(self, samples: int | None = None) -> Pending[Batch]:
        raise InputError("this algorithm loads its samples itself, which only `ownpace train` can do; use another")

    def take_share(self, start: float, stop: float) -> None:
        pass  # `fleet.batches` has dealt the data out already

    def gradient(
        self,
        samples: int | None = None,
        *,
        at: Parameters | None = None,
        batch: Batch | None = None,
        plus: Gradient | None = None,
    ) -> Wanted:
        self._wanted = Wanted(self, self.micro_batch if samples is None else samples, at, plus)
        return self._wanted

    def all_reduce(self, body: Any, group: Group | None = None) -> Any:
        if isinstance(body, Wanted):
            if body.gradient is not None:
                return super().all_reduce(body.gradient, group)
            body.reduce_in = group or self._roll.workers
            self._sum = WantedSum(self, body)
            return self._sum
        return super().all_reduce(body, group)

    # ---- what the user's loop does ----

    @property
    def wanting(self) -> bool:
        """Whether the algorithm waits for a gradient."""
        return self._coroutine is not None

    @property
    def wanted_samples(self) -> int:
        """How many samples the algorithm wants next; roughly, while it has them computed already."""
        return self.micro_batch if self._wanted is None else self._wanted.samples

    def begin(
        self,
        algorithm: Algorithm,
        batch_size: int,
        samples: int,
        ended: Callable[[int], int],
        stopped: Callable[[int], int],
    ) -> None:
        """Let the algorithm learn from so many samples; all workers count who has ended, and who asks to stop."""
        self.batch_size = self.micro_batch = batch_size
        # With servers, a worker may not know how many there were when the loop before was left.
        self._budget = math.inf if self._roll.servers else self._samples + samples
        self._ended, self._stopped = ended, stopped
        self._said_to_stop = False
        self._coroutine = algorithm.worker(self)
        self._go_on()

    def hand_out(self, samples: int) -> None:
        """The loop has got a batch."""
        if not self._handed_out:
            self._begun_s = self._clock.now()
            self._stopwatch.start()
        if self._sending is not None:
            raise _no_overlap("two batches were taken before optimizer.step")
        wanted = self._wanted
        if self._overlap and wanted is not None and wanted.reduce_in is not None and wanted.plus is None:
            ring = self.ring(wanted.reduce_in)
            if ring.size > 1:
                self._sending = Sending(ring, self._seat.layout, samples)
        self._handed_out += samples

    def _layer_is_there(self, index: int, parameter: Tensor) -> None:
        if self._sending is not None:
            self._sending.take(index, parameter.grad)

    def take_gradient(self) -> None:
        """The loop has called `optimizer.step()`: let the algorithm go on with the gradient."""
        if self._coroutine is None:
            return  # the run is over; the loop ends with this batch
        samples, self._handed_out = self._handed_out, 0
        if not samples:
            raise InputError("optimizer.step was called twice for one batch of fleet.batches; call it once")
        seconds = self._stopwatch.stop(samples)
        now = self._clock.now()
        self._books.work.add(self._begun_s, now, samples)
        wanted = self._wanted
        assert wanted is not None
        if self._books.detail:
            self._books.event(events.Compute(self._begun_s, now, self.name, samples, wanted.versions[0]))
        self._answer(wanted, samples, seconds)

    def _answer(self, wanted: Wanted, samples: int, seconds: float) -> None:
        """Give the algorithm the gradient of so many samples, or of none, and let it go on."""
        self._back_to_true()
        sending, self._sending = self._sending, None
        ring = None if wanted.reduce_in is None else self.ring(wanted.reduce_in)
        buffer = None if ring is None else sending.buffer if sending is not None else ring.buffer()
        out = None if ring is None or buffer is None else ring.values(buffer)
        if sending is not None:
            total = sending.complete(self._user.parameters)
        elif samples:
            total = self._user.gather(samples, out)
            if self._roll.servers:  # there, each gradient is an update of its own
                self._user.clip(total, samples)
        else:
            total = torch.zeros_like(self.holding.values) if out is None else out.zero_()
        if samples and total.device.type == "cpu" and not (sending and sending.departures.works):
            check_finite(
                self.name, self._samples, 0.0, total, self._seat.layout, all_=self._books.due(self._clock.now())
            )
        gradient = Gradient(total, samples, wanted.versions, 0.0, seconds)
        if wanted.plus is not None:
            gradient = gradient + wanted.plus
            if out is not None:
                gradient.total = out.copy_(gradient.total)
        self._wanted = None
        wanted.gradient = gradient
        if ring is not None and buffer is not None:
            assert self._sum is not None
            works = () if sending is None else sending.departures.works
            self._sum.reduced = self._start_reduced(ring, gradient, buffer, works)
            self._sum = None
        self._go_on()

    def _go_on(self) -> None:
        """Run the algorithm until it wants a gradient, or ends."""
        assert self._coroutine is not None
        try:
            self._coroutine.send(None)
        except StopIteration:
            self._coroutine = None
        wanted = self._wanted
        if self._coroutine is not None and wanted is not None and wanted.at is not None:
            self._true = self.holding.values.clone()
            self.holding.values.copy_(wanted.at.values)

    def _back_to_true(self) -> None:
        if self._true is not None:
            self.holding.values.copy_(self._true)
            self._true = None

    def _maybe_freeze(self) -> None:
        """Every update counts: what ends a user's loop is the end of its data."""

    def tell_to_stop(self) -> None:
        """Come to an end, and let the others know."""
        self._told_to_stop = True

    @property
    def wants_stop(self) -> bool:
        wants = super().wants_stop
        if wants and not self._said_to_stop:
            self._said_to_stop = True
            self._stopped(1)
        return wants

    def take_in(self, samples: int, stop: bool) -> None:
        # A server that was once told to stop says so for ever; it counts only if somebody did in this loop.
        super().take_in(samples, stop and not (self._roll.servers and not self._stopped(0)))

    def finish_segment(self) -> None:
        """The data has come to its end here: take part with nothing until it has for all.

        The samples that were learnt from do not tell: batches without a step are lost.
        """
        self._handed_out = 0
        if self._sending is not None:
            self._sending.give_up()
        self._ended(1)
        while self._coroutine is not None:
            assert self._wanted is not None
            if self._ended(0) >= len(self._roll.workers):
                self.tell_to_stop()
            elif self._roll.servers:
                time.sleep(_NOTHING_LEFT_S)
            self._answer(self._wanted, 0, 0.0)
        self._told_to_stop = self._stop = self._books.stats.frozen = False

    def pull(self) -> None:
        """Take over what the servers hold now."""
        for server in self._roll.servers:
            self._seat.post.send(server.name, Packet(control={"what": "pull", "who": self.name}))
        for _ in self._roll.servers:
            pulled = self.control("pulled")
            shard = self._roll.shards[pulled["shard"]]
            self.holding.place(pulled["body"].to(self.holding.values.device), shard)

    def at_global_parameters(self) -> _AtGlobal:
        """A context in which the model has the global parameters."""
        return _AtGlobal(self)


class Sending:
    """A gradient that leaves layer by layer, while the user's backward pass goes on."""

    def __init__(self, ring: Ring, layout: Layout, samples: int) -> None:
        self.buffer = ring.buffer()
        self._total = ring.values(self.buffer)
        self._views = layout.views(self._total)
        self._samples = samples
        self._counts: dict[int, int] = {}
        self.departures = Departures(ring, self.buffer, len(self._views))

    def take(self, index: int, gradient: Tensor | None) -> None:
        """One layer's gradient is there."""
        assert gradient is not None
        if index in self._counts:
            raise _no_overlap("backward was called twice before optimizer.step")
        torch.mul(gradient, self._samples, out=self._views[index])
        self._counts[index] = gradient._version
        self.departures.layer_is_there(index)

    def complete(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """All of it, after the backward pass; what took no part in the loss is zero."""
        for index in range(len(self._views) - 1, -1, -1):
            gradient = parameters[index].grad
            if index not in self._counts:
                self._views[index].zero_()
                self.departures.layer_is_there(index)
            elif gradient is None or gradient._version != self._counts[index]:
                raise _no_overlap("gradients were changed between backward and optimizer.step")
        return self._total

    def give_up(self) -> None:
        """The batch was never stepped with: what has not left yet is zero."""
        for index in range(len(self._views) - 1, -1, -1):
            if not self.departures.ready[index]:
                self._views[index].zero_()
                self.departures.layer_is_there(index)


def _no_overlap(what: str) -> InputError:
    return InputError(f"{what}, but with overlap=True they are on their way by then; use fleet.wrap(…, overlap=False)")


class _AtGlobal:
    def __init__(self, node: LoopWorker) -> None:
        self._node = node
        self._own: Tensor | None = None

    def __enter__(self) -> None:
        node = self._node
        if node._true is not None or node.servers:
            self._own = node.holding.values.clone()
            if node._true is not None:
                node.holding.values.copy_(node._true)
            node.pull()

    def __exit__(self, *details: object) -> None:
        if self._own is not None:
            self._node.holding.values.copy_(self._own)


def _agreed(own: Any, of_first: Any) -> Any:
    """The learning rate that all ranks step with: the first one's, since schedulers may be stepped unequally often.

    Rates travel in single precision; where the own one is the same but for that, it is taken.
    """
    return own if isinstance(own, Tensor) or np.float32(own) == np.float32(of_first) else of_first


def _ignore(event: events.Event) -> None:
    pass


def _uncounted(number: int) -> int:
    return 0


__all__ = ["Joined", "join"]
