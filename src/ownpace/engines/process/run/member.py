"""One process of a run, from coming in to going home, whatever its role."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, MachineDied, OwnpaceError
from ownpace.core.contract.values import Address, Parameters, Role, Shard
from ownpace.core.learning.flat import FlatModel, Layer, Layout
from ownpace.core.learning.optimizer import Build, FlatOptimizer, OptimizerSpec
from ownpace.core.learning.sampling import make_sampler
from ownpace.core.learning.schedule import Schedule
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.core.settings import build
from ownpace.core.version import __version__
from ownpace.engines.job import Job
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.process.node.awaitables import Released
from ownpace.engines.process.node.nodes import (
    ProcessCommunicator,
    ProcessNode,
    ProcessServer,
    ProcessWorker,
    Seat,
)
from ownpace.engines.process.node.parameters import FlatHolding
from ownpace.engines.process.node.reporter import Books, WallClock
from ownpace.engines.process.node.task_worker import Stopwatch, TaskWorker
from ownpace.engines.process.run.hub import error_letter
from ownpace.engines.process.run.rendezvous import Meeting
from ownpace.engines.process.talk.collectives import Wiring
from ownpace.engines.process.talk.counters import Counters
from ownpace.engines.process.talk.mailbox import Post
from ownpace.engines.process.talk.wire import Packet
from ownpace.engines.processor import Processor
from ownpace.engines.roster import HUB, Roll

if TYPE_CHECKING:
    from torch.distributed import Store


@dataclass(frozen=True)
class Terms:
    """What every node of a run must know, in a form that can be sent as JSON to helpers."""

    algorithm: Algorithm
    workers: tuple[str, ...]
    num_servers: int
    layers: tuple[Layer, ...]
    dtype: str
    optimizer: OptimizerSpec | OptimizerCopy
    samples: int | None
    seconds: float | None
    eval_every: int | None
    detail: bool

    @property
    def layout(self) -> Layout:
        """Of the model's parameters."""
        return Layout.of([(layer.name, layer.shape, layer.channels_last) for layer in self.layers])

    def roll(self) -> Roll:
        """Who takes part."""
        return Roll(self.algorithm, self.workers, self.num_servers, self.layout)

    def lr_factor(self, samples: float) -> float:
        """The schedule's factor on the learning rate."""
        if isinstance(self.optimizer, OptimizerSpec):
            return self.optimizer.schedule.factor(samples, self.samples)
        return 1.0

    def to_json(self) -> str:
        """For a helper that is started with nothing in common but the code."""
        kind = type(self.algorithm)
        if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
            raise InputError(
                f"the algorithm {kind.__qualname__} is defined in the script itself, where its servers cannot find it; "
                "put it into a module that can be imported"
            )
        optimizer = asdict(self.optimizer)
        if optimizer.pop("custom", None) is not None:
            raise InputError("an optimizer made by a function cannot be sent to servers under torchrun; give its name")
        content = {
            "algorithm": [kind.__module__, kind.__qualname__, asdict(self.algorithm)],  # type: ignore[call-overload]
            "workers": self.workers,
            "num_servers": self.num_servers,
            "layers": [[layer.name, list(layer.shape), layer.channels_last] for layer in self.layers],
            "dtype": self.dtype,
            "optimizer": [type(self.optimizer).__name__, optimizer],
            "samples": self.samples,
            "seconds": self.seconds,
            "eval_every": self.eval_every,
            "detail": self.detail,
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """The same, on the other side."""
        content = json.loads(text)
        module, name, fields = content["algorithm"]
        algorithm = build(named(module, name, Algorithm), fields, where=f"the parameters of {name}")
        kind, optimizer = content["optimizer"]
        if kind == "OptimizerSpec":
            schedule = optimizer.pop("schedule")
            schedule["milestones"] = tuple(schedule["milestones"])
            optimizer = OptimizerSpec(schedule=Schedule(**schedule), **optimizer)
        else:
            optimizer = OptimizerCopy(**optimizer)
        return cls(
            algorithm=algorithm,
            workers=tuple(content["workers"]),
            num_servers=content["num_servers"],
            layers=Layout.of([(name, torch.Size(shape), last) for name, shape, last in content["layers"]]).layers,
            dtype=content["dtype"],
            optimizer=optimizer,
            samples=content["samples"],
            seconds=content["seconds"],
            eval_every=content["eval_every"],
            detail=content["detail"],
        )


@dataclass(frozen=True)
class OptimizerCopy:
    """A user's torch optimizer, described so that a server can make its like."""

    module: str
    name: str
    groups: list[dict[str, Any]]
    """The options of each parameter group."""
    group_of_layer: list[int]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> OptimizerCopy:
        """Describe an optimizer over these parameters."""
        groups, places = [], {}
        for number, group in enumerate(optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            groups.append({key: float(value) if isinstance(value, Tensor) else value for key, value in options.items()})
            places.update({id(parameter): number for parameter in group["params"]})
        kind = type(optimizer)
        return cls(kind.__module__, kind.__qualname__, groups, [places[id(parameter)] for parameter in parameters])

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer over all layers."""
        return self._over(range(len(self.group_of_layer)))(parameters)

    def for_shard(self, layers: Sequence[Layer], shard: Shard) -> tuple[Build, list[int]]:
        """Makes the optimizer over the layers of a shard; and which of the groups those belong to."""
        mine = [i for i, layer in enumerate(layers) if shard.start <= layer.start < shard.stop]
        return self._over(mine), sorted({self.group_of_layer[i] for i in mine})

    def _over(self, layers: Sequence[int]) -> Build:
        kind: Any = named(self.module, self.name, torch.optim.Optimizer)

        def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            members: dict[int, list[nn.Parameter]] = {}
            for layer, parameter in zip(layers, parameters, strict=False):  # one vector may stand for all
                members.setdefault(self.group_of_layer[layer], []).append(parameter)
            groups = [{**self.groups[number], "params": group} for number, group in sorted(members.items())]
            optimizer: torch.optim.Optimizer = kind(groups, lr=self.groups[0]["lr"])
            return optimizer

        return build


def named(module: str, name: str, base: type) -> Any:
    """The class of that name, which must be one of `base`."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{module}.{name} cannot be imported here: {error}; install it on every host") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{module}.{name} is not a {base.__name__}")
    return found


class Membership:
    """A process's connection to the others: the store, the post, the clock, the books."""

    def __init__(self, name: str, meeting: Meeting, store: Store | None = None) -> None:
        self.name = name
        self.meeting = meeting
        self.store = meeting.open_store() if store is None else store
        self.post = Post(name, meeting.host, meeting.key, self._find, timeout_s=meeting.timeout_s)
        self.store.set(f"node/{name}", self.post.card)
        self.clock = WallClock()

    def _find(self, name: str) -> str:
        try:
            return self.store.get(f"node/{name}").decode()
        except RuntimeError:
            raise MachineDied(f"{name} did not come within {self.meeting.timeout_s:g} s; did it start?") from None

    def seat(
        self,
        terms: Terms,
        roll: Roll,
        address: Address,
        like: Tensor,
        *,
        leads: bool,
        alarms: Sequence[str] = (),
        stops: Sequence[str] = (),
    ) -> Seat:
        """The place of a node in the run."""
        return Seat(
            address=address,
            roll=roll,
            layout=terms.layout,
            like=like,
            post=self.post,
            wiring=Wiring(self.store, self.meeting.backend, self.meeting.host),
            clock=self.clock,
            books=Books(self.post, self.clock, detail=terms.detail),
            budget=terms.samples or math.inf,
            deadline_s=math.inf if terms.seconds is None else terms.seconds,
            eval_every=terms.eval_every or math.inf,
            lr_factor=terms.lr_factor,
            leads=leads,
            alarms=alarms,
            stops=stops,
        )

    def complain(self, error: BaseException) -> None:
        """Tell the hub that this node failed, and of what."""
        self.post.send(HUB, Packet(control={"what": "error", **error_letter(self.name, error)}))
        if isinstance(error, OwnpaceError) and not isinstance(error, InputError):  # a refusal everybody may read
            error.told = True

    def start_together(self, node: ProcessNode, *, spans_hosts: bool) -> None:
        """Say that this node is set, and wait until all are."""
        if spans_hosts:
            self._set_clock(node)
        node._books.say("set")
        self.clock.start(node.control("start")["zero_s"])
        self.clock.sleep_until(0.0)

    def _set_clock(self, node: ProcessNode, tries: int = 8) -> None:
        """Find by how much this host's clock is ahead of the hub's: the quickest answer knows best."""
        best = math.inf
        for _ in range(tries):
            asked = time.monotonic()
            node._books.say("clock")
            theirs = node.control("clock")["now"]
            took = time.monotonic() - asked
            if took < best:
                best, self.clock.ahead_s = took, asked + took / 2 - theirs


def drive(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("an algorithm awaited something that is not of ownpace; it may await only what `me` hands out")


def digest(values: Tensor) -> str:
    """A number that tells apart parameters that differ in any bit."""
    whole = values.detach().cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(whole.data, digest_size=16).hexdigest()


def run_helper(role: Role, index: int, terms: Terms, meeting: Meeting, *, spans_hosts: bool) -> None:
    """Be a server or a communicator until the last worker has ended."""
    torch.set_num_threads(1)
    keep_large_blocks()
    roll = terms.roll()
    address = (roll.servers if role == "server" else roll.communicators.members)[index]
    membership = Membership(address.name, meeting)
    dtype = getattr(torch, terms.dtype)
    seat = membership.seat(terms, roll, address, torch.empty(0, dtype=dtype), leads=role == "server")
    node: ProcessServer | ProcessCommunicator
    try:
        if role == "server":
            shard = address.shard
            builder: Build = terms.optimizer.build
            groups: list[int] | None = None
            if isinstance(terms.optimizer, OptimizerCopy):
                builder, groups = terms.optimizer.for_shard(terms.layers, shard)
            values = torch.zeros(shard.stop - shard.start, dtype=dtype)
            node = ProcessServer(seat, FlatHolding(values, FlatOptimizer(seat.layout, shard, values, builder), groups))
            while not node._mailbox:
                node.sort_mail(0.2)
            values.copy_(node._mailbox.popleft().parameters.values)
            coroutine = terms.algorithm.server(node)
        else:
            node = ProcessCommunicator(seat)
            coroutine = terms.algorithm.communicator(node)
        membership.start_together(node, spans_hosts=spans_hosts)
        with contextlib.suppress(Released):
            drive(coroutine)
        if isinstance(node, ProcessServer):
            node.show(membership.clock.now(), final=True)
        node._books.report()
        node._books.say("ended", digest="")
        node.await_farewell()
        node.close()
    except BaseException as error:
        membership.complain(error)
        raise
    finally:
        membership.post.close()


def run_worker(
    job: Job,
    rank: int,
    terms: Terms,
    meeting: Meeting,
    *,
    device: torch.device,
    spans_hosts: bool,
    model: FlatModel | None = None,
    store: Store | None = None,
    alarms: Sequence[str] = (),
    stops: Sequence[str] = (),
) -> list[str]:
    """Be a worker from the first sample to the last.

    Returns:
        The lines of the run's first, judging and last records, which everybody takes home.
    """
    keep_large_blocks()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    roll = terms.roll()
    address = roll.workers.members[rank]
    membership = Membership(address.name, meeting, store)
    counters: Counters | None = None
    node: TaskWorker | None = None
    try:
        if model is None:
            torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
            model = FlatModel(job.task, device, job.autocast)
        model.module.train()
        train = job.task.train_samples()
        initial = model.initial
        whole = address.shard
        holding = FlatHolding(initial, FlatOptimizer(model.layout, whole, initial, job.optimizer.build))
        machine = job.fleet.workers[rank]
        counters = Counters(membership.store, first=rank == 0, spans_hosts=spans_hosts)
        leads = rank == 0 and not roll.servers
        seat = membership.seat(terms, roll, address, initial[:0], leads=leads, alarms=alarms, stops=stops)
        node = TaskWorker(
            seat,
            holding,
            job.batch_size,
            job.micro_batch or job.batch_size,
            model=model,
            train=train.to(device),
            sampler=make_sampler(job.sampling, len(train), len(roll.workers), job.seed, counters.taking(0)),
            processor=None if machine.machine.samples_per_s is None else Processor(machine, rank, job.seed),
            stopwatch=Stopwatch(device, membership.clock),
            graphs=job.cuda_graphs,
        )
        introduce(node, fingerprint(terms, job.task.__class__.__name__) | {"seed": str(job.seed)})
        share_parameters(node)
        node.warm_up()
        torch.manual_seed(seed_for(job.seed, Purpose.MODEL, rank))
        membership.start_together(node, spans_hosts=spans_hosts)
        counters.forget_path()
        drive(job.algorithm.worker(node))
        return end_worker(node)
    except BaseException as error:
        membership.complain(error)
        raise
    finally:
        if counters is not None:
            counters.close()
        if node is not None:
            node.close()
        membership.post.close()


def introduce(node: ProcessNode, fingerprint: Mapping[str, str]) -> None:
    """Show the hub what this worker is about to train, and wait for its consent.

    Raises:
        InputError: The others train something else.
    """
    node._books.say("ready", fingerprint=fingerprint)
    while True:
        node.sort_mail(0.2)
        while node._controls:
            control = node._controls.popleft()
            if control["what"] == "refuse":
                raise InputError(control["message"])
            if control["what"] == "go":
                return


def fingerprint(terms: Terms, task: str) -> dict[str, str]:
    """What must be the same on all workers, in words that a difference can be told in."""
    layout = terms.layout
    layers = [(layer.name, tuple(layer.shape), layer.channels_last) for layer in layout.layers]
    shapes = hashlib.sha256(repr(layers).encode())
    optimizer = terms.optimizer
    if isinstance(optimizer, OptimizerCopy):
        settings = [{k: v for k, v in sorted(group.items()) if not isinstance(v, dict)} for group in optimizer.groups]
        described = f"{optimizer.name} {settings[0] if len(settings) == 1 else settings}"
    else:
        described = repr(optimizer)
    return {
        "version of ownpace": __version__,
        "version of torch": torch.__version__,
        "algorithm": repr(terms.algorithm),
        "task": task,
        "model": f"{layout.size:,} parameters in {len(layout.layers)} layers ({shapes.hexdigest()[:8]}, {terms.dtype})",
        "optimizer": described,
        "budget": f"{terms.samples} samples, {terms.seconds} s",
    }


def share_parameters(node: ProcessWorker) -> None:
    """Begin with the parameters of rank 0, on all workers and servers."""
    ring = node.ring(node.workers)
    values = node.holding.values
    node.wait_for(ring.broadcast([values], 0), "workers")
    if node.rank == 0:
        for server in node.servers:
            shard = server.shard
            node.send(server, Parameters(values[shard.start : shard.stop].clone(), 0, shard))


def end_worker(node: ProcessWorker) -> list[str]:
    """Tell the hub how this worker ended, and wait until everybody has."""
    node._settle()
    node.show(node._clock.now(), final=True)
    node._books.report()
    node._books.say("ended", digest=digest(node.holding.values))
    return node.await_farewell()
