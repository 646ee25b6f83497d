"""One generation of a run: its nodes, made of the run's state, and their coroutines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ownpace.core.contract.values import Shard
from ownpace.engines.roster import Roster, divide
from ownpace.engines.virtual.clock import Driver
from ownpace.engines.virtual.collectives import Collectives
from ownpace.engines.virtual.nodes import VirtualCommunicator, VirtualNode, VirtualServer
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.state import Counts, RunState, WorkerRecord, replica_of
from ownpace.engines.virtual.worker import VirtualWorker


class VirtualGeneration:
    """All nodes from the beginning of their coroutines to the end."""

    def __init__(self, simulation: Simulation, state: RunState, members: Sequence[str]) -> None:
        self._simulation = simulation
        self._state = state
        self.members = list(members)
        """The workers' names, by rank."""
        self._collectives = Collectives(simulation)
        self._drivers: dict[VirtualNode, Driver] = {}
        self._running: set[VirtualWorker] = set()
        workers, numbers = simulation.job.fleet.workers, simulation.numbers
        self._sites = [workers[numbers[name]].machine.site for name in members]
        self._subgroups = divide(simulation.job.algorithm, self._sites)
        self.servers = self._make_servers()
        self.communicators = self._make_communicators()
        self.workers = self._make_workers()
        simulation.roster = Roster(
            self._subgroups,
            [node.address for node in self.workers],
            [node.address for node in self.servers],
            [node.address for node in self.communicators],
        )
        self._place_data()
        self._let_uplinks_go_on()

    def _let_uplinks_go_on(self) -> None:
        for site, link in self._state["uplinks"].items():
            if site in self._simulation.uplinks:
                uplink = self._simulation.uplinks[site]
                uplink.in_free_s, uplink.out_free_s = link

    def start(self, on_end: Callable[[], None]) -> None:
        """Start all coroutines; `on_end` is called once the last worker's has ended."""
        algorithm, clock = self._simulation.job.algorithm, self._simulation.clock

        def ended(worker: VirtualWorker) -> Callable[[], None]:
            def has_ended() -> None:
                self._running.discard(worker)
                # Servers and communicators never end by themselves, so all is over with the last worker.
                if not self._running:
                    on_end()

            return has_ended

        # Servers first, as what starts at the same time goes on in the order of starting: they wait for the first push.
        self._drivers |= {node: clock.start(algorithm.server(node), _ignore) for node in self.servers}
        self._drivers |= {node: clock.start(algorithm.communicator(node), _ignore) for node in self.communicators}
        self._running = set(self.workers)
        self._drivers |= {node: clock.start(algorithm.worker(node), ended(node)) for node in self.workers}

    def close(self) -> None:
        """End all coroutines where they are."""
        for driver in self._drivers.values():
            driver.close()

    def abandon(self) -> None:
        """End the coroutines of workers and communicators where they are; servers go on."""
        for node in (*self.workers, *self.communicators):
            self._close(node)
        self._running.clear()

    def worker(self, name: str) -> VirtualWorker | None:
        """The worker of that name, if it is a member."""
        return self.workers[self.members.index(name)] if name in self.members else None

    def needs(self, name: str) -> bool:
        """Whether that worker's coroutine still runs."""
        return self.worker(name) in self._running

    def lose_server(self, index: int) -> None:
        """A server is gone, with all it has not handed on."""
        self._close(self.servers[index])

    def _close(self, node: VirtualNode) -> None:
        if node in self._drivers:  # else it has not been started
            self._drivers[node].close()
        # What still comes must not wake a coroutine that has ended.
        node.receiving = None

    def who_waits(self) -> list[str]:
        """Which nodes wait for what, in words."""
        waiting = [f"{worker.address.name} for a message" for worker in self.workers if worker.receiving]
        return [*waiting, *self._collectives.waiting()]

    # ---- nodes out of a state ----

    def _make_servers(self) -> list[VirtualServer]:
        simulation, state = self._simulation, self._state
        machines, layout = simulation.job.servers, simulation.learning.layout
        shards = layout.shards(len(machines)) if machines else ()
        servers = []
        for shard, machine in zip(shards, machines, strict=True):
            server = VirtualServer((simulation, self._collectives), shard, machine, self._replica(0, shard))
            records = state["servers"]
            if records:
                # Of another number of servers, each goes on where the furthest of them was.
                same = len(records) == len(machines)
                counts = records[shard.index]["counts"] if same else _furthest([each["counts"] for each in records])
                server.progress.begin_at(counts["samples"], (counts["version"],), counts["ahead"])
                if same:
                    server.in_free_s, server.out_free_s = records[shard.index]["link"]
            servers.append(server)
        return servers

    def _make_communicators(self) -> list[VirtualCommunicator]:
        simulation = self._simulation
        communicators = [
            VirtualCommunicator((simulation, self._collectives), index, self._sites[ranks[0]])
            for index, ranks in enumerate(self._subgroups)
            if simulation.job.algorithm.has_communicators
        ]
        # As many as there are on both sides: with other subgroups, these are others.
        for node, link in zip(communicators, self._state["communicators"], strict=False):
            node.in_free_s, node.out_free_s = link
        return communicators

    def _make_workers(self) -> list[VirtualWorker]:
        simulation, records = self._simulation, self._state["workers"]
        numbers = simulation.numbers
        # Those that hold the same replica share it: workers that step alike then compute each step once.
        replicas: dict[int, Replica] = {}
        workers = []
        for rank, name in enumerate(self.members):
            index = records[name]["replica"] if name in records and not self.servers else 0
            if index not in replicas:
                replicas[index] = self._replica(index, simulation.whole)
                replicas[index].holders = 0
            replicas[index].holders += 1
            shards = max(1, len(self.servers))
            worker = VirtualWorker((simulation, self._collectives), rank, numbers[name], replicas[index], shards)
            self._go_on(worker, name)
            workers.append(worker)
        return workers

    def _replica(self, index: int, shard: Shard) -> Replica:
        simulation, records = self._simulation, self._state["replicas"]
        if not records:
            return Replica(simulation.learning.initial[shard.start : shard.stop])
        optimizer = simulation.optimizer(shard)
        return replica_of(records[index], simulation.learning.layout, shard, optimizer)

    def _go_on(self, worker: VirtualWorker, name: str) -> None:
        """Let a worker go on where the one of this name was; one that is new begins like the first of the others."""
        state = self._state
        if not state["workers"]:
            if self.servers:  # the last of the others is gone; what the servers have is what this one begins with
                worker.progress.begin_at(*self._counts_of_servers())
            return
        of_name = state["workers"].get(name)
        record = of_name or next(iter(state["workers"].values()))
        worker.progress.begin_at(*self._counts(record))
        worker.buffers = [buffer.clone() for buffer in record["buffers"]]
        worker.kept = {key: value.clone() for key, value in state["kept"].items()}
        if of_name is not None:
            worker.processor.go_on(of_name["processor"])
            worker.in_free_s, worker.out_free_s = of_name["link"]
        if name in state["tallies"]:
            samples, worker.compute_s, worker.load_s = state["tallies"][name]
            worker.computed_samples = int(samples)

    def _counts(self, record: WorkerRecord) -> tuple[int, tuple[int, ...], float]:
        if self.servers:  # they know: a worker had heard of fewer updates when it ended
            return self._counts_of_servers()
        counts = record["counts"]
        return counts["samples"], (counts["version"],), counts["ahead"]

    def _counts_of_servers(self) -> tuple[int, tuple[int, ...], float]:
        progresses = [server.progress for server in self.servers]
        furthest = max(progresses, key=lambda progress: progress.samples)
        return furthest.samples, tuple(progress.version for progress in progresses), furthest.ahead

    def _place_data(self) -> None:
        simulation, state = self._simulation, self._state
        learners: Sequence[VirtualServer | VirtualWorker] = self.servers or self.workers[:1]
        numbers = [simulation.numbers[name] for name in self.members]
        versions = [learner.progress.version for learner in learners]
        simulation.begin_data(numbers, versions, learners[0].progress.samples, state["left"])
        if simulation.sampler is not None:
            for rank, name in enumerate(self.members):
                if name in state["workers"]:
                    simulation.sampler.go_on(rank, state["workers"][name]["position"])


def _furthest(all_counts: Sequence[Counts]) -> Counts:
    return max(all_counts, key=lambda counts: (counts["samples"], counts["version"]))


def _ignore() -> None:
    pass
