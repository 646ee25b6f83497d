"""One run in virtual time, from the first event to the last."""

from __future__ import annotations

import gc
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import cast

import torch

from ownpace.core.contract import events
from ownpace.core.contract.errors import Deadlock, InputError, Interrupted, MachineDied, OwnpaceError
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.generators import set_generators
from ownpace.engines.job import Job, OnProgress, Outcome
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.resuming import on_checkpoint, resumed
from ownpace.engines.threads import threads_that_pay
from ownpace.engines.virtual.border import drain, let_pass, regroup_s, take_state
from ownpace.engines.virtual.clock import EmptySchedule, Planned
from ownpace.engines.virtual.faults import Faults
from ownpace.engines.virtual.generation import VirtualGeneration
from ownpace.engines.virtual.monitor import Monitor
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.state import RunState, first_state, progress_of


def run_virtual(job: Job, emit: events.Emit, on_progress: OnProgress | None = None) -> Outcome:
    """Run a job in virtual time.

    Args:
        job: What to run.
        emit: Takes every event as it happens.
        on_progress: Called now and then with the samples so far and the virtual time.

    Returns:
        How it ended. Errors of the run itself (divergence, a dead machine, Ctrl-C) are in the outcome; bad
        input raises.
    """
    keep_large_blocks()
    # The caller's random numbers stay as they are. GPUs are named, since fork_rng would save the state of all.
    devices = [torch.device(job.device).index or 0] if torch.device(job.device).type == "cuda" else []
    collects = _no_garbage_collection() if job.timing_only else nullcontext()
    with torch.random.fork_rng(devices), threads_that_pay(job), collects:
        torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
        return VirtualRun(job, emit, on_progress).run()


class VirtualRun:
    """One run: a sequence of generations, each made of the state that the one before has left."""

    def __init__(self, job: Job, emit: events.Emit, on_progress: OnProgress | None) -> None:
        if not job.fleet.paced:
            raise InputError(
                "a machine of the fleet has no pace (samples_per_s), and virtual time cannot guess it; "
                "give it one, or use the engine 'process'"
            )
        self.simulation = Simulation(job, emit)
        self._monitor = Monitor(self.simulation, on_progress)
        self.simulation.on_update = self._monitor.updated
        self.simulation.on_merge = self._monitor.merged
        self._faults = Faults(self.simulation)
        self._state = first_state(self._faults.alive)
        layout = self.simulation.learning.layout
        self._on_checkpoint = on_checkpoint(job, layout)
        if (state := resumed(job, layout)) is not None:
            self._take_up(state)
        self._begin()

    def _take_up(self, given: PlainState) -> None:
        """Go on from a checkpoint. Workers that are not in the fleet any more are left out, new ones join."""
        if given.get("engine") != "virtual":
            raise InputError("this checkpoint is not one of virtual time; go on with the engine 'process'")
        state = self._state = cast(RunState, {**self._state, **given})
        numbers, clock = self.simulation.numbers, self.simulation.clock
        there = [n for n in numbers if n in state["alive"] or n not in state["tallies"]]
        # If all who are named now were gone by then, somebody has started them again.
        self._faults.alive = there or list(numbers)
        clock.time = state["time_s"]
        set_generators(state["random"], torch.device(self.simulation.job.device))
        self._monitor.go_on(state["books"])

    def run(self) -> Outcome:
        """Let generation after generation pass, and write the last record, whatever happens."""
        monitor = self._monitor
        error: OwnpaceError | None = None
        try:
            if self._state["generation"] == 1:
                self.simulation.emit(self._header())
                monitor.evaluate()  # the model before the first update is the first point of every curve
            self._plan()
            self._go_through()
            # What was in flight at the last mark has been applied since.
            monitor.evaluate()
        except EmptySchedule:
            error = Deadlock(self._who_waits())
        # Bad input raises, whenever it is found; only what happens to a valid run is its outcome.
        except InputError as raised:
            error = self._cannot_go_on(raised)
            if error is raised:
                raise
        except OwnpaceError as raised:
            error = raised
            self._forget_what_died()
        except KeyboardInterrupt:
            error = Interrupted(
                f"interrupted at sample {monitor.totals.samples}; everything up to then has been written"
            )
        finally:
            self._generation.close()  # servers and communicators would go on for ever
        # After the coroutines: whatever they emit while being closed must not follow the last record.
        monitor.end(error)
        return Outcome("finished" if error is None else str(error), error, monitor.model.export())

    def _header(self) -> events.Run:
        simulation = self.simulation
        groups = simulation.roster.names()
        num_parameters = simulation.learning.layout.size
        return simulation.job.header("virtual", num_parameters, simulation.parameter_bytes, groups)

    def _plan(self) -> None:
        """Schedule what will happen to the run, whichever generation it is in by then."""
        simulation, now = self.simulation, self._state["time_s"]
        if now < simulation.deadline_s < math.inf:
            simulation.clock.at(simulation.deadline_s, Planned(self._monitor.training_ends))
        self._faults.plan(now)

    def _go_through(self) -> None:
        """One generation after the other, until training has ended."""
        simulation, faults = self.simulation, self._faults
        while not self._over:
            self._generation.start(self._generation_ended)
            simulation.clock.going_on = True
            simulation.clock.go_on()
            # Workers that ended before the mark did so by themselves: the algorithm has done all it wanted to.
            goes_on = faults.broken or faults.awaited or self._monitor.totals.samples >= simulation.budget
            if faults.broken:
                # Even if training is over: what died with a machine may have to be learnt again.
                self._break_off()
                if self._over:
                    self._announce()
                    return
            elif self._over or not goes_on:
                return
            else:
                self._end_in_good_order()
            self._begin()

    @property
    def _over(self) -> bool:
        job, monitor = self.simulation.job, self._monitor
        time_is_up = self.simulation.clock.time >= (job.seconds or math.inf)
        return monitor.over or time_is_up or monitor.totals.samples >= (job.samples or math.inf)

    def _begin(self) -> None:
        """Make the nodes of a generation."""
        simulation, state = self.simulation, self._state
        members = list(self._faults.alive)
        simulation.budget = self._next_mark()
        if not self._monitor.over:
            simulation.deadline_s = simulation.job.seconds or math.inf
        try:
            self._generation = generation = VirtualGeneration(simulation, state, members)
        except InputError as error:
            raise self._cannot_go_on(error) from None
        self._monitor.attend(generation.workers, generation.servers, state["tallies"])
        self._faults.begin(generation)
        if generation.servers and len(state["servers"]) not in (0, len(generation.servers)):
            # Of another number, each goes on where the furthest was; so does the run.
            furthest, totals = generation.servers[0].progress, self._monitor.totals
            totals.updates, totals.samples = furthest.version, furthest.samples
        if state["generation"] > 1:
            self._announce()

    def _announce(self) -> None:
        """Record with whom the run goes on, and from what."""
        simulation, state, totals = self.simulation, self._state, self._monitor.totals
        members = list(self._faults.alive)
        changed = None if members == state["members"] else members
        number, why = state["generation"], state["why"]
        simulation.emit(
            events.Generation(
                simulation.clock.time, number, why, changed, totals.updates, totals.samples, state["lost"]
            )
        )

    def _next_mark(self) -> float:
        """After how many samples the next generation ends: at a checkpoint, or with the run."""
        job, samples = self.simulation.job, self._monitor.totals.samples
        budget = job.samples or math.inf
        every = job.checkpoint_every
        return budget if every is None else min(budget, (samples // every + 1) * every)

    def _end_in_good_order(self) -> None:
        """All workers have ended by themselves: nothing is in flight."""
        simulation, faults = self.simulation, self._faults
        faults.end()
        self._generation.close()
        simulation.clock.drop(lambda event: isinstance(event, Planned))
        members = list(faults.alive)
        if members != self._generation.members:
            let_pass(simulation, simulation.clock.time + regroup_s(simulation, members))
            members = list(faults.alive)  # others may have come or gone meanwhile
            if faults.servers_back_s:  # what a server had learnt since its latest snapshot is gone
                self._break_off()
                return
        is_due = self._monitor.totals.samples >= simulation.budget
        came = set(members).difference(self._generation.members)
        left = set(self._generation.members).difference(members)
        self._take_state("join" if came else "death" if left else "checkpoint", None)
        # The state is taken after that pause, so that a run which goes on from it begins at the same time.
        if is_due and self._on_checkpoint is not None:
            self._on_checkpoint(cast(PlainState, self._state))

    def _break_off(self) -> None:
        """A machine is gone: all others give up what they have under way, and go on from where the furthest is."""
        simulation, faults, generation = self.simulation, self._faults, self._generation
        faults.end()
        drain(simulation, generation)
        let_pass(simulation, simulation.clock.time + regroup_s(simulation, faults.alive))
        # A server that dies meanwhile makes all wait for it, too.
        while max(faults.servers_back_s.values(), default=0.0) > simulation.clock.time:
            let_pass(simulation, max(faults.servers_back_s.values()))
        faults.servers_back_s.clear()
        if not generation.servers and faults.died.issuperset(generation.members):
            raise MachineDied(f"{', '.join(sorted(faults.died))} died, and nobody is left who has the parameters")
        self._take_state(faults.broken or "death", faults.died)
        # The model is what the survivors have: the latest update may have been that of a machine which is gone.
        self._monitor.model.latest = next(
            (worker for worker in generation.workers if worker.address.name not in faults.died), generation.workers[0]
        )

    def _take_state(self, why: str, died: Collection[str] | None) -> None:
        state = take_state(self.simulation, self._generation, self._state, died)
        # Here, not with each death: some updates may have been made by a worker that died, and by no other.
        lost = 0
        if died is not None:
            updates, samples = progress_of(state)
            lost = self._monitor.go_back(updates, samples)
        state["why"], state["alive"] = why, list(self._faults.alive)
        state["lost"] = max(lost, self._faults.lost)
        state["books"] = self._monitor.books()
        self._state = state

    def _forget_what_died(self) -> None:
        """Let the last sums count what is in the model, where a server is gone that would have been restored."""
        servers = self._generation.servers
        if servers and self._faults.servers_back_s:
            versions = [server.progress.version for server in servers]
            self._monitor.go_back(versions[0], self.simulation.accounts.samples(versions))

    def _cannot_go_on(self, error: InputError) -> OwnpaceError:
        """Some settings fit one number of workers only: no mistake of the user's, once a machine has died."""
        if self._state["why"] not in ("death", "join"):
            return error
        left = len(self._faults.alive)
        return MachineDied(f"the run cannot go on with {left} workers: {error}")

    def _generation_ended(self) -> None:
        self.simulation.clock.going_on = False

    def _who_waits(self) -> str:
        waiting = self._generation.who_waits()
        more = f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        return f"nothing is left to happen, but {', '.join(waiting[:4])}{more} still wait; the algorithm is at fault"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Simulating time alone makes no reference cycles, and looking for them costs large fleets half their time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
