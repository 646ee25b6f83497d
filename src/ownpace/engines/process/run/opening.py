"""How a user's script takes part in a run, from its first loop on: its session, its worker, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from ownpace.core.choices import OnFailure
from ownpace.core.contract import events
from ownpace.core.contract.algorithm import Algorithm
from ownpace.engines.job import OnProgress
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.process.hub.config import Elasticity, HubConfig
from ownpace.engines.process.hub.session import Session
from ownpace.engines.process.lives.loop_data import LoopData
from ownpace.engines.process.lives.loop_life import LoopLife
from ownpace.engines.process.lives.loop_parts import LoopParts, Script
from ownpace.engines.process.lives.sharing import begin_alike
from ownpace.engines.process.lives.user_terms import header_of, terms_of, user_words
from ownpace.engines.process.meet.connection import Connection
from ownpace.engines.process.meet.environment import Environment
from ownpace.engines.process.meet.rendezvous import Rendezvous, common_backend
from ownpace.engines.process.node.loop import UserLoop
from ownpace.engines.process.node.model_state import global_state_dicts
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.presence.presence import Presence
from ownpace.engines.process.presence.readmission import Readmission
from ownpace.engines.process.run.launch import backend_on
from ownpace.engines.process.run.torchrun import helpers_here
from ownpace.engines.process.talk.counters import Counters
from ownpace.engines.process.talk.sealed_store import SealedStore
from ownpace.engines.process.talk.store import WatchedStore


@dataclass(frozen=True)
class FleetOptions:
    """What `ownpace.join` was given."""

    algorithm: Algorithm
    server_hosts: Sequence[int]
    backend: str | None
    seed: int
    detail: bool
    on_event: events.Emit | None
    on_progress: OnProgress | None
    timeout_s: float
    on_failure: OnFailure = "continue"
    min_workers: int = 1


@dataclass(frozen=True)
class Opened:
    """What exists from the first loop on."""

    session: Session
    life: LoopLife
    loop: UserLoop
    model: nn.Module
    user: UserParameters
    hooks: ExitStack
    """What was put on the user's models; closed, they are free of it."""


@dataclass(frozen=True)
class Opening:
    """All that it takes, once the ranks have met."""

    options: FleetOptions
    environment: Environment
    sealed: SealedStore
    store: WatchedStore
    rendezvous: Rendezvous
    presence: Presence
    data: LoopData
    script: Script
    on_progress: Callable[[ProcessWorker, int], None]

    def open(
        self,
        stack: ExitStack,
        model: nn.Module,
        user: UserParameters,
        *,
        overlap: bool | None,
        batch_size: int,
        alike: Mapping[str, object],
    ) -> Opened:
        """Start the run: servers, the hub on rank 0, and this worker's place in it; `stack` closes them.

        Args:
            stack: Gets what is to be closed.
            model: The user's.
            user: Its parameters.
            overlap: Whether layers are sent during the backward pass (None: where that is safe).
            batch_size: Of the first loop.
            alike: What must be the same on all ranks, besides model, optimizer and algorithm.
        """
        session, connection, worker = self._enter(stack, model, user, batch_size)
        keep_large_blocks()  # a buffer for every sum: as in a complete run
        worker.kept = self.data.kept
        loop = UserLoop(worker, user, overlap=overlap)
        hooks = stack.enter_context(_hooks(model, user, loop))
        words = {"seed": self.options.seed, **user_words(user)}
        # A rank that comes late goes on with what the others have: its data was compared, and it has no checkpoint.
        first = {} if self._is_late else {**alike, "checkpoint": self.data.checkpoint}
        is_late = connection.introduce(worker, session.terms.fingerprint(**first, **words))
        # After the introduction: ranks that differ are refused before any of them waits for another's counter file.
        counters = None if is_late else self._open_counters(worker, self.presence.check)
        own = self.data, self._open_counters, self.on_progress, self.script, partial(self._rejoin, words)
        life = LoopLife(LoopParts(session, connection, loop, user, model, *own), worker, counters)
        stack.callback(life.close)
        stack.enter_context(connection.complaining())  # last of all: left before anything that may wait for a peer
        opened = Opened(session, life, loop, model, user, hooks)
        if counters is None:
            self.data.begun = self.presence.place.loops - 1
            life.join()
        else:
            self._begin(opened, connection, counters)
        self._go_on_from_now_on(session, life, stack)
        return opened

    def _begin(self, opened: Opened, connection: Connection, counters: Counters) -> None:
        """Begin with what rank 0 has, when all ranks do."""
        worker = opened.life.node
        begin_alike(worker, opened.user, opened.model)
        connection.start_together(worker)
        counters.forget_path()  # all workers have opened the file: they have all said that they are prepared

    def _rejoin(self, words: Mapping[str, object], connection: Connection, worker: ProcessWorker) -> None:
        """This rank was declared dead: let the other ranks and the hub know that it is back."""
        self.presence.rejoin(self.options.timeout_s)
        connection.introduce(worker, worker.context.terms.fingerprint(**words))

    @property
    def _is_late(self) -> bool:
        return self.presence.past is not None

    def _go_on_from_now_on(self, session: Session, life: LoopLife, stack: ExitStack) -> None:
        """The run has begun: it goes on when ranks die. One whose first loop does not even start has failed."""
        session.orders.goes_on = self.options.on_failure != "stop"
        self.presence.on_wait = life.settle
        rank, world_size = self.environment.rank, self.environment.world_size
        if rank == 0 and world_size > 1 and session.orders.goes_on:
            back = Readmission(self.rendezvous, world_size, lambda: session.orders.gone)
            stack.callback(back.close)

    def _open_counters(self, worker: ProcessWorker, on_wait: Callable[[], None]) -> Counters:
        return Counters(
            self.store,
            self.rendezvous.secret,
            scope=f"generation-{worker.context.generation}/",
            first=worker.rank == 0,
            spans_hosts=self.rendezvous.spans_hosts,
            timeout_s=self.options.timeout_s,
            on_wait=on_wait,
        )

    def _enter(
        self, stack: ExitStack, model: nn.Module, user: UserParameters, batch_size: int
    ) -> tuple[Session, Connection, ProcessWorker]:
        """Open the session, and connect this worker."""
        options, environment = self.options, self.environment
        num_servers = len(options.server_hosts) if options.algorithm.has_servers else 0
        terms = terms_of(options.algorithm, environment.world_size, num_servers, user, detail=options.detail)
        hub = self._hub_config(terms, model, user, batch_size) if environment.rank == 0 else None
        session = stack.enter_context(
            Session(
                terms,
                self._with_backend(user.values.device),
                store=self.sealed,
                hub=hub,
                handles_signals=True,
                presence=self.presence,
            )
        )
        # Servers first, since importing torch takes them longest; then the hub, which waits for all of them.
        helpers = helpers_here(session, environment, options.server_hosts)
        session.start_children([replace(order, is_late=self._is_late) for order in helpers])
        # Entered before the connection, so that it is left after it: the hub has to hear how this node ended.
        stack.enter_context(session.hub_running())
        address = session.roster.workers.members[environment.rank]
        connection, context = stack.enter_context(session.connected(address, user.values[:0], is_evaluated=False))
        return session, connection, ProcessWorker(context, user, batch_size, batch_size)

    def _with_backend(self, device: torch.device) -> Rendezvous:
        able = backend_on(device, self.environment.local_world_size, self.options.algorithm)
        asked = self.options.backend or able
        timeout_s, on_wait = self.options.timeout_s, self.presence.check
        backend = common_backend(self.store, self.environment, asked, timeout_s, on_wait)
        return replace(self.rendezvous, backend=backend)

    def _hub_config(self, terms: RunTerms, model: nn.Module, user: UserParameters, batch_size: int) -> HubConfig:
        options = self.options
        header = header_of(terms, model, user, options.seed, batch_size)
        emit = options.on_event or _ignore
        layers = [layer.name for layer in terms.layers]
        elasticity = Elasticity(terms, options.on_failure, options.min_workers, joins_by_force=True)
        return HubConfig(header, layers, emit, elasticity, options.on_progress)


def _hooks(model: nn.Module, user: UserParameters, loop: UserLoop) -> ExitStack:
    """What is put on a user's models; closed, they are free of it."""
    with ExitStack() as stack:
        stack.enter_context(global_state_dicts([model], user, lambda: loop.global_values))
        stack.callback(loop.let_go)
        return stack.pop_all()


def _ignore(event: events.Event) -> None:
    pass
