"""What arrives at a node: messages of its generation, older ones not, newer ones when their time has come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from ownpace.algorithms import make_algorithm
from ownpace.core.contract.errors import Interrupted, PeerLost, WireError
from ownpace.core.contract.values import Address, Gradient, Parameters, Shard
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines.process.meet.rendezvous import LOOPBACK, local_store
from ownpace.engines.process.node.context import NodeContext, Orders
from ownpace.engines.process.node.inbox import Inbox, NewLoop, Released
from ownpace.engines.process.node.receiving import ProcessReceive
from ownpace.engines.process.node.reporter import HUB, Reporter, WallClock
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.talk.channels import Wiring
from ownpace.engines.process.talk.control import (
    ClockAnswer,
    Control,
    Dismiss,
    GiveUp,
    Goodbye,
    Prepared,
    Pull,
    Release,
    Start,
    Stop,
    Welcome,
)
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.run_key import RunKey
from ownpace.engines.process.talk.wire import Packet
from ownpace.engines.progress import Progress

TERMS = RunTerms(
    algorithm=make_algorithm("async"),
    workers=("worker-0", "worker-1"),
    num_servers=1,
    layers=Layout.of([("weight", torch.Size([4]), False)]).layers,
    dtype=torch.float32,
    optimizer=OptimizerSpec(),
)
ROSTER = TERMS.roster(["worker-0"])  # the other is gone


class Node:
    """A node that notes what its inbox tells it, and takes Pulls itself."""

    def __init__(self, *, restarts: bool) -> None:
        self.restarts = restarts
        self.settings: list[float] = []
        self.controls: list[Control] = []

    def hear_settings_of_message(self, settings: Sequence[float]) -> None:
        self.settings += settings

    def hear_control(self, sender: str, control: Control, body: object) -> bool:
        self.controls.append(control)
        return isinstance(control, Pull)


class Pair:
    """A worker and a server in one process, whose mailboxes are real ones; messages go from one to the other."""

    def __init__(self) -> None:
        self._store, _ = local_store()
        self._mailboxes: dict[str, Mailbox] = {}
        key = RunKey.new()
        for name in ("worker-0", "server-0", HUB):
            self._mailboxes[name] = Mailbox(name, LOOPBACK, key, lambda to: self._mailboxes[to].contact)

    def inbox(self, address: Address, node: Node) -> Inbox:
        mailbox, clock = self._mailboxes[address.name], WallClock()
        clock.start(0.0)
        context = NodeContext(
            address=address,
            roster=ROSTER,
            terms=TERMS,
            layout=TERMS.layout,
            like=torch.empty(0),
            mailbox=mailbox,
            wiring=Wiring(self._store, "gloo", LOOPBACK),
            clock=clock,
            reporter=Reporter(address.name, mailbox, clock, detail=False),
            orders=Orders(),
            is_evaluated=False,
        )
        return Inbox(context, Progress(TERMS.budget), node)

    def send(self, sender: str, to: str, *packets: Packet) -> None:
        for packet in packets:
            self._mailboxes[sender].send(to, packet)
        # Messages come in order: when this one is there, so are all before it.
        self._mailboxes[sender].send(to, Packet(control=Prepared()))

    def close(self) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.close(now=True)


@pytest.fixture
def pair() -> Iterator[Pair]:
    opened = Pair()
    yield opened
    opened.close()


def worker(pair: Pair) -> tuple[Inbox, Node]:
    node = Node(restarts=False)
    return pair.inbox(ROSTER.workers.members[0], node), node


def server(pair: Pair) -> tuple[Inbox, Node]:
    node = Node(restarts=True)
    return pair.inbox(ROSTER.servers.members[0], node), node


def numbered(number: int, generation: int) -> Packet:
    return Packet(notes={"number": number}, generation=generation)


def taken(inbox: Inbox) -> list[float]:
    """The numbers of the messages that an algorithm would receive now."""
    numbers = []
    while (received := inbox.receive()).message is not None:
        numbers.append(received.message.notes["number"])
    return numbers


def awaited(received: ProcessReceive) -> None:
    """Await a message that has come."""
    with pytest.raises(StopIteration):
        next(received.__await__())


def test_a_message_of_an_older_generation_is_dropped(pair):
    inbox, _ = worker(pair)
    inbox.begin(2)
    pair.send("server-0", "worker-0", numbered(1, 1), numbered(2, 2), numbered(3, 0))
    inbox.wait_for(Prepared)
    assert taken(inbox) == [2]


def test_a_message_of_a_newer_generation_waits_until_a_worker_has_begun_it(pair):
    inbox, _ = worker(pair)
    inbox.begin(1)
    pair.send("server-0", "worker-0", numbered(1, 2), numbered(2, 1), numbered(3, 3), numbered(4, 2))
    inbox.wait_for(Prepared)
    assert taken(inbox) == [2]
    inbox.begin(2)
    assert taken(inbox) == [1, 4]
    inbox.begin(3)
    assert taken(inbox) == [3]


def test_what_was_left_of_a_generation_is_gone_in_the_next(pair):
    inbox, _ = worker(pair)
    inbox.begin(1)
    pair.send("server-0", "worker-0", numbered(1, 1))
    pair.send(HUB, "worker-0", Packet(control=Stop()))
    inbox.wait_for(Prepared)
    inbox.wait_for(Prepared)
    assert inbox.told_to_stop
    inbox.begin(2)
    assert not inbox.told_to_stop
    assert taken(inbox) == []


def test_a_message_of_a_newer_loop_ends_what_a_server_does(pair):
    inbox, _ = server(pair)
    inbox.heeds_loops = True
    pair.send("worker-0", "server-0", numbered(1, 0), numbered(2, 1))
    with pytest.raises(NewLoop):
        inbox.wait_for(Prepared)
    assert inbox.newest_loop == 1
    inbox.begin(inbox.newest_loop)
    assert taken(inbox) == [2]
    inbox.wait_for(Prepared)


def test_a_server_that_waits_for_the_start_is_not_disturbed_by_a_worker_that_has_heard_of_it(pair):
    inbox, _ = server(pair)
    pair.send("worker-0", "server-0", numbered(1, 1))
    inbox.wait_for(Prepared)
    assert inbox.newest_loop == 1
    inbox.begin(inbox.newest_loop)
    assert taken(inbox) == [1]


def test_settings_are_heard_only_when_their_message_is_awaited(pair):
    """Those of later messages, or of a newer generation, would else change the updates made with this one."""
    inbox, node = worker(pair)
    early = inbox.receive()
    packets = Packet(settings=(1.0,)), Packet(settings=(2.0,)), Packet(settings=(3.0,), generation=1)
    pair.send("server-0", "worker-0", *packets)
    inbox.wait_for(Prepared)
    assert node.settings == []
    for expected, received in ((1.0, early), (2.0, inbox.receive())):
        awaited(received)
        assert node.settings[-1] == expected
    inbox.begin(1)
    assert node.settings == [1.0, 2.0]
    awaited(inbox.receive())
    assert node.settings == [1.0, 2.0, 3.0]


def test_a_receive_takes_the_next_message_of_its_sender(pair):
    inbox, _ = worker(pair)
    of_server, of_worker = inbox.receive(ROSTER.servers.members[0]), inbox.receive(ROSTER.workers.members[0])
    pair.send("server-0", "worker-0", numbered(1, 0), numbered(2, 0))
    inbox.wait_for(Prepared)
    assert of_server.done
    assert of_server.message.notes == {"number": 1}
    assert not of_worker.done
    assert taken(inbox) == [2]


def test_control_messages_wait_unless_the_node_takes_them(pair):
    inbox, node = server(pair)
    pair.send("worker-0", "server-0", Packet(control=Pull()))
    inbox.wait_for(Prepared)
    assert node.controls == [Pull(), Prepared()]


def test_a_released_server_ends_while_it_waits(pair):
    inbox, _ = server(pair)
    pair.send(HUB, "server-0", Packet(control=Release()))
    with pytest.raises(Released):
        inbox.block(inbox.receive().is_there)


def test_a_run_that_has_failed_says_of_what(pair):
    inbox, _ = worker(pair)
    pair.send(HUB, "worker-0", Packet(control=GiveUp("diverged", "the loss is nan")))
    with pytest.raises(PeerLost, match="the run has failed: the loss is nan"):
        inbox.wait_for(Prepared)


def test_a_worker_that_a_signal_asks_to_end_tells_the_hub_and_goes_on_until_it_is_let_go(pair):
    inbox, _ = worker(pair)
    orders = inbox._context.orders
    orders.leaves = True
    orders.stops.append("SIGTERM")
    assert not inbox.wants_stop()
    pair.send(HUB, "worker-0", Packet(control=Dismiss("SIGTERM")))
    with pytest.raises(Interrupted, match="interrupted by SIGTERM at sample 0; the others go on without this rank"):
        inbox.wait_for(Prepared)
    assert orders.is_told


def test_only_the_hub_has_a_say_in_how_the_run_goes_on(pair):
    inbox, _ = worker(pair)
    for control in (
        Stop(),
        Dismiss("SIGTERM"),
        Release(),
        GiveUp("diverged", "no"),
        Start(0.0),
        ClockAnswer(1.0),
        Goodbye([]),
        Welcome(),
    ):
        pair.send("server-0", "worker-0", Packet(control=control))
        words = f"server-0 sent what no node sends: {type(control).__name__}, which only the hub may say"
        with pytest.raises(WireError, match=words) as caught:
            inbox.wait_for(Prepared)
        assert caught.value.blame == "server-0"
        inbox.wait_for(Prepared)
    assert not inbox.told_to_stop
    assert not inbox.released


def test_a_message_that_does_not_fit_names_its_sender(pair):
    inbox, _ = server(pair)
    shard = ROSTER.shards[0]
    for body, words in (
        (Gradient(torch.zeros(4, dtype=torch.float64), 1, (0,)), "values of type torch.float64"),
        (Gradient(torch.zeros(3), 1, (0,)), "a gradient of 3 values"),
        (Gradient(torch.zeros(4), -1, (0,)), "has the number -1"),
        (Gradient(torch.zeros(4), 1, (0, 0)), "the versions"),
        (Parameters(torch.zeros(4), 1, Shard(7, 0, 4)), "parameters of shard 7"),
        (Parameters(torch.zeros(4), -1, shard), "has the number -1"),
    ):
        pair.send("worker-0", "server-0", Packet(body))
        with pytest.raises(WireError, match=f"worker-0 sent what no node sends: .*{words}"):
            inbox.wait_for(Prepared)
        inbox.wait_for(Prepared)


def _push(rank: int, generation: int) -> Packet:
    gradient = Gradient(torch.zeros(4), 8, (0,))
    gradient.sources = ((rank, 8),)
    return Packet(gradient, {"number": rank}, generation=generation)


def test_ranks_are_those_of_the_generation_of_a_message(pair):
    """What a worker has sent before it was cut off comes when its link is back, and the others have gone on."""
    inbox, _ = server(pair)
    inbox.begin(1)
    pair.send("worker-0", "server-0", _push(1, generation=0), _push(0, generation=1))
    inbox.wait_for(Prepared)
    assert taken(inbox) == [0]
    pair.send("worker-0", "server-0", _push(1, generation=1))
    with pytest.raises(WireError, match=r"worker-0 sent what no node sends: samples of the ranks \[1\]"):
        inbox.wait_for(Prepared)
