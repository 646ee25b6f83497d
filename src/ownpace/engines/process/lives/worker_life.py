"""A worker of a complete run, over all its generations: what it trains, how far it is, and where in the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ownpace.core.learning.claims import Places
from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.optimizer import FlatOptimizer, State
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.generators import generator_states, set_generators
from ownpace.engines.job import Job
from ownpace.engines.process.hub.session import Session
from ownpace.engines.process.lives.exchange import (
    NodeCounts,
    await_state,
    counted,
    give_state,
    take_counted,
    take_kept,
)
from ownpace.engines.process.lives.life import (
    await_plan,
    await_regrouping,
    drive,
    forget_lines,
    next_node,
    say_farewell,
    until_started,
)
from ownpace.engines.process.lives.worker_data import EVERYTHING, WorkerData
from ownpace.engines.process.lives.worker_parts import NoSamples, at_home, share_parameters
from ownpace.engines.process.meet.connection import Connection
from ownpace.engines.process.node.computer import GradientComputer
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.inbox import TICK_S
from ownpace.engines.process.node.model_point import held_by_servers
from ownpace.engines.process.node.parameters import FlatParameters
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.node.task_gradients import TaskGradients
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.control import Ended
from ownpace.engines.process.talk.counters import Counters
from ownpace.engines.process.talk.regrouping import RegroupPlan
from ownpace.engines.processor import Processor


class WorkerLife:
    """One worker's process."""

    def __init__(
        self, session: Session, connection: Connection, context: NodeContext, job: Job, index: int, model: FlatModel
    ) -> None:
        self._session = session
        self._connection = connection
        self._job = job
        self._index = index
        """The machine's place in the fleet, which it keeps; its rank is its place in a generation."""
        self._name = context.address.name
        device = context.like.device
        model.module.train()
        self._data = WorkerData(job, connection, device)
        optimizer = FlatOptimizer(
            model.layout,
            context.address.shard,
            model.initial,
            job.optimizer.build,
            clip_norm=job.optimizer.clip_norm,
        )
        self._held = FlatParameters(model.initial, optimizer)
        self._computer = GradientComputer(model, self._data.train, device, graphs=job.cuda_graphs)
        machine = job.fleet.workers[index]
        paced = machine.machine.samples_per_s is not None
        self._processor = Processor(machine, index, job.seed) if paced else None
        self._counts = NodeCounts()
        self._is_new = True
        self._is_running = False
        self._is_apart = False
        """Whether its optimizer's state is its own."""
        self.node = self._worker(context)

    # ---- the first generation ----

    def begin(self) -> None:
        node = self.node
        if self._introduce():
            node.source = TaskGradients(node, self._computer, NoSamples(), self._processor)
            self._warm_up()
            await_regrouping(node)
        counters = self._data.open_counters(node, self._look)
        # One that goes on from a checkpoint never starts: the hub has another in its place.
        with until_started(node, partial(self._start, EVERYTHING, counters), counters.close):
            self._draw(node, EVERYTHING, counters)
            share_parameters(node)
            self._warm_up()
            self._connection.start_together(node)

    def _introduce(self) -> bool:
        """Say what this worker is about to train; returns whether the others do so already."""
        task, terms = type(self._job.task).__name__, self._session.terms
        # Refused before anything is exchanged: tensors of different models would not even have the same size.
        return self._connection.introduce(self.node, terms.fingerprint(task=task, seed=self._job.seed))

    def _warm_up(self) -> None:
        # Before time begins, or what is made on first use would be measured as this worker's pace.
        self._computer.warm_up(self._held.values, min(self.node.micro_batch, self._job.batch_size))
        # After warming up, which draws random numbers, too: dropout is the same whatever was warmed up.
        torch.manual_seed(seed_for(self._job.seed, Purpose.MODEL, self._index))
        # Only from here on: a run whose first generation does not even start has failed.
        self.node.restarts = True

    def _worker(self, context: NodeContext, before: ProcessWorker | None = None) -> ProcessWorker:
        job = self._job
        micro_batch = job.algorithm.micro_batch(job.batch_size, job.micro_batch, len(context.roster.workers))
        return ProcessWorker(context, self._held, job.batch_size, micro_batch, before)

    def _draw(self, node: ProcessWorker, left: Sequence[Places], counters: Counters) -> None:
        """Let a node draw the samples that are left, and compute their gradients."""
        node.source = TaskGradients(node, self._computer, self._data.sampler(node, left, counters), self._processor)

    def _start(self, left: Sequence[Places], counters: Counters) -> None:
        """The generation has started, for all of them."""
        self._data.start(self.node, left, counters)
        self._is_new, self._is_running = False, True
        self._session.orders.goes_on = self._job.on_failure != "stop"
        begun, self._session.on_begun = self._session.on_begun, _nothing
        begun()
        self.node.learner.begin()

    def close(self) -> None:
        """Leave nothing open."""
        self.node.sums.close()
        self._data.close()

    # ---- in a generation ----

    def work(self) -> None:
        drive(self._job.algorithm.worker(self.node))

    def end(self) -> list[str]:
        node = self.node
        # The last gradient may still be asked for and not computed; the checksums must be of what is shown.
        node.finish_asked()
        node.context.reporter.report()
        is_through = node.training and not node.inbox.wants_stop()
        node.context.reporter.say(Ended(node.learner.last_checksums(), node.progress.samples, is_through))
        while not node.inbox.released:
            node.inbox.look(TICK_S)
        node.learner.show(final=True)
        return say_farewell(node)

    # ---- from one generation to the next ----

    def regroup(self) -> None:
        before = self.node
        if before.inbox.declared_dead:
            self._come_back()
        # Abandoned, not closed: whoever is gone would be waited for.
        before.sums.close(abandon=True)
        before.learner.go_back()
        if self._is_running:
            self._counts, self._is_running = NodeCounts.of(before), False
            self._is_apart = self._is_apart or before.learner.has_stepped_alone
        checksums = self._checksums()
        plan = await_plan(before, self._counts, is_new=self._is_new, checksums=checksums)
        self.node = node = next_node(
            before, plan, self._session, self._connection, partial(self._worker, before=before), self._look
        )
        left = self._share(plan)
        counters = self._data.open_counters(node, self._look)
        with until_started(node, partial(self._start, left, counters), counters.close):
            self._draw(node, left, counters)
            for parameters in held_by_servers(node):
                node.place(parameters)
            if plan.wants_state:
                give_state(node, HUB, self._state(left, plan), plan.generation)
            if self._name in plan.receivers:  # else it has what it had
                checksums = self._checksums()
            self._connection.start_together(node, is_new=self._is_new, checksums=checksums)

    def _come_back(self) -> None:
        """The others have gone on without this worker: join them anew, with what they have."""
        inbox = self.node.inbox
        inbox.declared_dead = self.node.restarts = False
        self._session.orders.is_told = False  # of a signal: not by a line that had ended
        self._is_new, self._is_running = True, False
        forget_lines(self.node)
        self._introduce()
        await_regrouping(self.node)

    def _look(self) -> None:
        self.node.inbox.look(0.0)

    def _checksums(self) -> list[int]:
        return [] if len(self.node.servers) else self.node.learner.checksums()

    # ---- what is given and taken ----

    def _share(self, plan: RegroupPlan) -> list[Places]:
        """Give or take what the plan says; returns the places of the data that are left."""
        node, generation = self.node, plan.generation
        if plan.giver == self._name:
            left = self._data.left_over(plan)
            for name in plan.workers:
                if name != self._name:
                    whole = self._shared() | {"buffers": self._computer.buffer_list()}
                    give_state(node, name, {"left": left, **(whole if name in plan.receivers else {})}, generation)
        else:
            state = await_state(node, generation)
            left = [(start, stop) for start, stop in cast("Sequence[Places]", state["left"])]
            if self._name in plan.receivers:
                self._take(state)
        counts = self._counts = self._counts.at(plan, has_servers=len(node.servers) > 0)
        node.go_on_from(counts.samples, counts.version, counts.ahead)
        return left

    def _shared(self) -> dict[str, object]:
        """What is the same on all workers, or was made by all."""
        return {
            "values": self._held.snapshot(),
            "optimizer": self._held.all_states(),
            "kept": dict(self.node.kept),
            **counted(self.node, self._counts),
        }

    def _state(self, left: Sequence[Places], plan: RegroupPlan) -> PlainState:
        """What a checkpoint needs of this worker."""
        processor = self._processor
        if plan.giver == self._name:
            shared = self._shared()
        else:  # its parameters are the giver's
            shared = {"optimizer": self._held.all_states()} if self._is_apart else {}
        return {
            **shared,
            "counts": dataclasses.asdict(self._counts),
            "left": left,
            "buffers": self._computer.buffer_list(),
            "random": generator_states(self.node.context.like.device),
            "processor": {} if processor is None else processor.state(),
            "position": self._data.position(),
        }

    def _take(self, state: PlainState) -> None:
        """Go on with what another worker has, or a checkpoint."""
        device = self.node.context.like.device
        values = cast(Tensor, state["values"]).to(device)
        states = cast("Mapping[str, State]", state["optimizer"])
        self._held.take_all(values, {memory: at_home(each, device) for memory, each in states.items()})
        take_kept(self.node, state)
        self._counts = take_counted(self.node, state)
        if self._is_new:
            self._take_own(state)

    def _take_own(self, state: PlainState) -> None:
        """Go on with what belongs to this machine, as far as it is known."""
        # Running statistics of others are a better start than none.
        self._computer.take_buffers(cast("Sequence[Tensor]", state["buffers"]))
        if "random" in state:
            set_generators(cast("Sequence[Tensor]", state["random"]), self.node.context.like.device)
        if "processor" in state and self._processor is not None:
            self._processor.go_on(cast(PlainState, state["processor"]))
        self._data.from_checkpoint = cast("PlainState | None", state.get("position"))
        tally = cast("Sequence[float] | None", state.get("tally"))
        if tally is not None:
            work = self.node.context.reporter.work
            work.samples, work.compute_s, work.load_s = int(tally[0]), tally[1], tally[2]


def _nothing() -> None:
    pass
