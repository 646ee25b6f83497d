"""One process's part in a run, whatever started it: its connection, its children, the hub if it keeps it, its signals.

    launcher          a session with the hub; all nodes are its children
    rank of torchrun  a session with one worker; rank 0 also has the hub, in a thread; servers and communicators are
                      children of the rank whose host they belong to
    `ownpace.join`    the same, with a user's loop for a worker
    child             a session with one node, and nothing else

Whatever was opened is closed in the opposite order, however the run ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ownpace.core.contract.errors import NodeFailed, OwnpaceError
from ownpace.core.contract.values import Address
from ownpace.engines.job import Outcome
from ownpace.engines.process.hub.config import HubConfig
from ownpace.engines.process.hub.hub import Hub
from ownpace.engines.process.hub.keeper import GOODBYE_S, HubKeeper
from ownpace.engines.process.meet.connection import Connection
from ownpace.engines.process.meet.environment import silence_s
from ownpace.engines.process.meet.interrupts import signals
from ownpace.engines.process.meet.rendezvous import Rendezvous
from ownpace.engines.process.meet.supervisor import NodeOrder, Supervisor
from ownpace.engines.process.node.context import NodeContext, Orders
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.presence.presence import Presence
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.sealed_store import SealedStore

_LAST_WORDS_S = 1.0
"""How long a node whose code failed may take to print its traceback."""
_LOOK_EVERY_S = 0.05


class Session:
    """One process's part in a run. Use it as a context manager."""

    def __init__(
        self,
        terms: RunTerms,
        rendezvous: Rendezvous,
        *,
        store: SealedStore | None = None,
        hub: HubConfig | None = None,
        handles_signals: bool = False,
        presence: Presence | None = None,
    ) -> None:
        self.terms = terms
        self.roster = terms.roster()
        self.orders = Orders() if presence is None else presence.orders
        self.on_begun: Callable[[], None] = _nothing
        """Called when the first generation of a complete run has started."""
        self._presence = presence
        self.rendezvous = rendezvous
        self._store = store
        self._hub_config = hub
        self._handles_signals = handles_signals
        self._supervisor = Supervisor()
        self._stack = ExitStack()
        self._keeper: HubKeeper | None = None
        self._error: OwnpaceError | None = None
        self._explained: OwnpaceError | None = None
        """Why this rank's node has failed, as rank 0 knows it."""

    def __enter__(self) -> Session:
        with ExitStack() as opened:  # closes what was opened if one of these fails
            if self._handles_signals:
                # First in, last out: until the last child is gone, Ctrl-C must not end this process halfway.
                opened.enter_context(signals(self.orders))
            if self._hub_config is not None:
                # With a store of its own: another thread's may block.
                connection = Connection(
                    HUB, self.rendezvous, on_wait=self._raise_deaths, hears=self._hears, silence_s=silence_s()
                )
                opened.callback(self._close_hub, connection.mailbox)
                self._keeper = HubKeeper(
                    Hub(connection.mailbox, self.roster, self._hub_config), self.orders, self._supervisor
                )
            opened.callback(self._end_children)  # before the mailbox closes: what they were told must reach them
            self._stack = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and self._error is None:
            self._error = error if isinstance(error, OwnpaceError) else NodeFailed(str(error))
        self._stack.close()

    def _hears(self, name: str) -> bool:
        """Whether a node of this name has a place in the run."""
        return name == HUB or name in self.roster.by_name

    def _close_hub(self, mailbox: Mailbox) -> None:
        # Closing waits for what was sent to be taken: not by those who never will.
        for rank in self.orders.gone:
            mailbox.drop(self.roster.workers.members[rank].name)
        assert self._keeper is not None
        for node in self.roster.nodes:
            if node.name not in self._keeper.hub.members:
                mailbox.drop(node.name)
        mailbox.close(now=self._supervisor.started_all(self.roster))

    def _end_children(self) -> None:
        after_failure_s = _LAST_WORDS_S if isinstance(self._error, NodeFailed) else 0.0
        self._supervisor.end(GOODBYE_S if self._error is None else after_failure_s)

    def start_children(self, orders: Sequence[NodeOrder], *, fork: bool = False) -> None:
        """Start nodes as processes of their own; their death ends this process's part in the run."""
        is_on_cpu = all(order.job is None or torch.device(order.job.device).type == "cpu" for order in orders)
        start = partial(self._supervisor.fork, is_on_cpu=is_on_cpu) if fork else self._supervisor.spawn
        by_name = {order.name: order for order in orders}
        for order in orders:
            start(order)
        self.orders.helpers = list(by_name)
        if self._keeper is not None:
            restarts = self._keeper.hub.membership.restarts
            restarts.start = lambda name: start(replace(by_name[name], is_late=True))
            restarts.names = set(by_name)
            helpers = {node.name for node in (*self.roster.servers, *self.roster.communicators)}
            restarts.elsewhere = helpers - by_name.keys()
        # Only one may look after them: a death is reported once. Where there is a hub, that is its keeper.
        if self._keeper is None and orders:
            over = threading.Event()
            watch = threading.Thread(target=self._watch, args=(over, by_name), name="ownpace-supervisor", daemon=True)
            watch.start()
            self._stack.callback(over.set)

    def watch_returns(self, on_join: Callable[[int], None]) -> None:
        """Where the hub is: call this with the rank of each worker that is back, or was started again."""
        assert self._keeper is not None
        self._keeper.hub.membership.on_join = on_join

    def _watch(self, over: threading.Event, orders: Mapping[str, NodeOrder]) -> None:
        while not over.wait(_LOOK_EVERY_S):
            # A helper that has heard Goodbye may end before this process has: that is no reason to give up.
            deaths = self._supervisor.deaths(even_clean=False)
            if self.orders.goes_on:
                for death in deaths:  # the hub waits for it
                    self._supervisor.spawn(replace(orders[death.blame], is_late=True))
            else:
                self.orders.alarms += deaths

    def _raise_deaths(self) -> None:
        """While the hub waits for a node to answer: one that is gone never will."""
        self.orders.raise_alarms()
        if self._keeper is not None and self._keeper.hub.has_started:
            return  # a death is the hub's own business then
        for death in self._supervisor.deaths():
            raise death

    @contextmanager
    def connected(
        self, address: Address, like: Tensor, *, is_evaluated: bool
    ) -> Iterator[tuple[Connection, NodeContext]]:
        """Connect a node of this process; if it fails, the hub is told why."""
        connection = Connection(
            address.name, self.rendezvous, self._store, on_wait=self.orders.raise_alarms, hears=self._hears
        )
        try:
            yield (
                connection,
                connection.context(self.terms, self.roster, address, like, self.orders, is_evaluated=is_evaluated),
            )
        except BaseException as error:
            # Before the mailbox closes, which waits until this has gone out: the hub may have no other way to learn it.
            connection.complain(error)
            # Before that, too: it may be the hub that is gone, and what it was sent would be waited for in vain, and
            # after that for the explanation.
            if self._keeper is None and self._presence is not None and isinstance(error, OwnpaceError):
                self._explained = self._presence.explained(error)
            raise
        finally:
            # Closing waits for what was sent to be taken. With an alarm, all ranks hear of it from each other, and the
            # hub may be gone.
            connection.mailbox.close(now=self._presence is not None and bool(self.orders.alarms))

    def keep_hub(self) -> None:
        """Lead the run to its end, in this thread."""
        assert self._keeper is not None
        self._keeper.run()
        self._error = self._keeper.error

    @contextmanager
    def hub_running(self) -> Iterator[None]:
        """The hub in a thread of its own, if it is in this process, while this process's node does its part.

        Raises:
            OwnpaceError: Why the run has failed, if it has: of several explanations, the best.
        """
        if self._keeper is not None:
            self._keeper.start()
        try:
            yield
        except OwnpaceError as error:
            self._end_hub(error)
            # "worker-1 was killed" explains more than "a member of workers is gone".
            if error.is_consequence and self._error is not None and self._error is not error:
                self._error.told = error.told
                raise self._error from error
            raise
        except BaseException:
            self._end_hub(None)
            raise
        self._end_hub(None)
        if self._error is not None:
            raise self._error

    def _end_hub(self, error: OwnpaceError | None) -> None:
        """Wait for the hub to end; `error` is why this process's own node failed."""
        if self._keeper is not None:
            self._error = self._keeper.end(error)
        elif self._presence is not None and error is not None:
            self._error = self._explained or self._presence.explained(error)
        else:
            self._error = error

    def outcome(self) -> Outcome:
        """How the run ended, as far as the hub knows."""
        assert self._keeper is not None
        hub, error = self._keeper.hub, self._error
        model = {} if hub.evaluator is None else hub.evaluator.model()
        return Outcome("finished" if error is None else str(error), error, model)


def _nothing() -> None:
    pass
