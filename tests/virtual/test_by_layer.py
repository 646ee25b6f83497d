"""What is handed over before it is there: order, what can be read when, and what is waited for."""

from __future__ import annotations

import pytest
import torch
from tests.conformance.test_by_layer import Equal

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker
from ownpace.fleet import Fleet, Machine, Network, ServerMachine
from ownpace.testing import simulate

FLEET = Fleet(
    machine=(Machine(samples_per_s=8),),
    network=Network(bandwidth_bytes_per_s=1e4, latency_s=0.01),
    server=(ServerMachine(), ServerMachine(bandwidth_bytes_per_s=1e3)),
)


def simulated(algorithm: Algorithm, **job: object) -> None:
    outcome, _ = simulate(algorithm, FLEET, task=Equal(), samples=8, **job)
    assert outcome.error is None


class Script(Algorithm):
    """Servers answer every gradient by layer, and note what they hear."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []

    async def server(self, me: Server) -> None:
        while True:
            message = await me.receive()
            self.heard.append((me.address.name, message.body is not None))
            if message.body is not None:
                me.step(message.gradient)
                me.send(message.sender, me.parameters.to_send(by_layer=True), note=7.0)


def test_messages_keep_their_order_behind_a_gradient_that_was_handed_over():
    class Orderly(Script):
        async def worker(self, me: Worker) -> None:
            gradient = me.gradient()
            for server in me.servers:
                me.send(server, gradient)
                me.send(server, last=1.0)
            await me.receive(me.servers.members[0])
            await me.receive(me.servers.members[1])
            await me.gradient()

    algorithm = Orderly()
    simulated(algorithm)
    for name in ("server-0", "server-1"):
        assert [is_gradient for who, is_gradient in algorithm.heard if who == name] == [True, False]


def test_a_gradient_that_is_done_goes_in_parts_too():
    class Late(Script):
        async def worker(self, me: Worker) -> None:
            gradient = me.gradient()
            await gradient
            for server in me.servers:
                me.send(server, gradient)
            for server in me.servers:
                me.place((await me.receive(server)).parameters)

    algorithm = Late()
    simulated(algorithm)
    assert algorithm.heard == [("server-0", True), ("server-1", True)]


def test_who_awaits_a_message_gets_all_of_it_and_who_places_it_its_beginning():
    times: dict[str, float] = {}

    class Both(Script):
        async def worker(self, me: Worker) -> None:
            slow = me.servers.members[1]
            for way in ("awaited", "placed"):
                gradient = me.gradient()
                me.send(slow, gradient)
                await gradient
                answer = me.receive(slow)
                if way == "placed":
                    me.place(answer)
                message = await answer
                times[way] = me._clock.time  # type: ignore[attr-defined]  # the engine's
                assert message.notes == {"note": 7.0}
                if way == "awaited":
                    assert not message.parameters.values.isnan().any()
                    me.place(message.parameters)
                times[f"{way}, computed"] = times[way]
                await me.gradient()
                times[f"{way}, computed"] = me._clock.time  # type: ignore[attr-defined]

    simulated(Both())
    # The backward pass has its first layer after 4/9 s. Three of 256 bytes at 1000 bytes/s take 0.768 s, as the link is
    # never idle in between; and a way takes 0.01 s more.
    pause = times["awaited, computed"]
    assert times["awaited"] == pytest.approx(4 / 9 + 0.768 + 0.01 + 0.768 + 0.01)
    assert times["placed"] - pause == pytest.approx(4 / 9 + 0.768 + 0.01 + 0.256 + 0.01)
    assert times["awaited, computed"] - times["awaited"] == pytest.approx(1.0)
    # The last layer comes 0.512 s later; then its forward pass, and the backward pass.
    assert times["placed, computed"] - times["placed"] == pytest.approx(0.512 + 1 / 18 + 2 / 3)


def test_parameters_that_have_not_come_cannot_be_read():
    class Hasty(Script):
        async def worker(self, me: Worker) -> None:
            server = me.servers.members[0]
            me.send(server, me.gradient())
            answer = me.receive(server)
            me.place(answer)
            for look in (lambda: me.parameters, lambda: me.peek(me.no_gradient())):
                with pytest.raises(RuntimeError, match="have not come yet; await those messages first"):
                    look()
            await answer
            assert me.parameters.version == 0  # of the oldest shard
            me.place(me.receive(server))
            me.gradient()
            with pytest.raises(RuntimeError, match="one waits for parameters already"):
                me.gradient()

    simulated(Hasty())


def test_the_gradient_is_of_what_has_come():
    points: list[torch.Tensor] = []

    class Twice(Script):
        async def worker(self, me: Worker) -> None:
            before = me.parameters.values.clone()
            gradient = me.gradient()
            for server in me.servers:
                me.send(server, gradient)
                me.place(me.receive(server))
            total = (await gradient).total
            assert me.training  # as far as it knows
            again = await me.gradient()
            assert not me.training  # it has waited for the servers' messages, which say so
            assert again.versions == (1, 1)
            points.append(me.parameters.values - (before - 0.5 * total / 8))

    simulated(Twice(), lr=0.5)
    assert float(points[0].abs().max()) < 1e-6
