"""One run in virtual time, from the first event to the last."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import cast

import torch

from ownpace.core.contract import events
from ownpace.core.contract.errors import Deadlock, InputError, Interrupted, MachineDied, OwnpaceError
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.job import Job, OnProgress, Outcome
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.virtual.border import take_state
from ownpace.engines.virtual.clock import EmptySchedule, Planned
from ownpace.engines.virtual.generation import VirtualGeneration
from ownpace.engines.virtual.monitor import Monitor
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.state import RunState, first_state, set_random_states
from ownpace.fleet import PlannedFault


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
    with torch.random.fork_rng(devices):
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
        self._state = first_state(list(self.simulation.numbers))
        if job.resume_from is not None:
            self._take_up(job.resume_from)
        self._begin()

    def _take_up(self, given: PlainState) -> None:
        """Go on from a checkpoint. Workers that are not in the fleet any more are left out, new ones join."""
        state = self._state = cast(RunState, {**self._state, **given})
        numbers, clock = self.simulation.numbers, self.simulation.clock
        state["alive"] = [n for n in numbers if n in state["alive"] or n not in state["tallies"]]
        clock.time = state["time_s"]
        set_random_states(state["random"], torch.device(self.simulation.job.device))
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
            with nullcontext() if self.simulation.real else _no_garbage_collection():
                self._go_through()
            # What was in flight at the last mark has been applied since.
            monitor.evaluate()
        except EmptySchedule:
            error = Deadlock(self._who_waits())
        # Bad input raises, whenever it is found; only what happens to a valid run is its outcome.
        except InputError:
            raise
        except OwnpaceError as raised:
            error = raised
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
        learning = self.simulation.learning
        groups = self.simulation.roster.names()
        return self.simulation.job.header("virtual", learning.layout.size, learning.initial.nbytes, groups)

    def _plan(self) -> None:
        """Schedule what will happen to the run, whichever generation it is in by then."""
        clock, now = self.simulation.clock, self._state["time_s"]
        deadline = self.simulation.deadline_s
        planned: list[tuple[float, Callable[[], None]]] = (
            [] if deadline == math.inf else [(deadline, self._monitor.training_ends)]
        )
        for fault in self.simulation.job.fleet.fault:
            # A pause is in the machine's own changes of pace; here it is only recorded.
            first = partial(self._kill, fault) if fault.kind == "kill" else partial(self._note, "pause", fault)
            planned.append((fault.at_s, first))
            if fault.kind == "pause" and fault.back_at_s is not None:
                planned.append((fault.back_at_s, partial(self._note, "back", fault)))
        for time, happening in planned:
            # What was due at the time of a checkpoint happened before it: it was scheduled first.
            if time > now or self._state["generation"] == 1:
                clock.at(time, Planned(happening))

    def _go_through(self) -> None:
        """One generation after the other, until training has ended."""
        while not self._over:
            self._generation.start(self._generation_ended)
            self.simulation.clock.going_on = True
            self.simulation.clock.go_on()
            # Workers that ended before the mark did so by themselves: the algorithm has done all it wanted to.
            if self._over or self._monitor.totals.samples < self.simulation.budget:
                return
            self._state = self._border("checkpoint")
            if self.simulation.job.on_checkpoint is not None:
                self.simulation.job.on_checkpoint(self._state)
            self._begin()

    @property
    def _over(self) -> bool:
        return self._monitor.over or self._monitor.totals.samples >= (self.simulation.job.samples or math.inf)

    def _begin(self) -> None:
        """Make the nodes of a generation."""
        simulation, state = self.simulation, self._state
        members = [name for name in simulation.numbers if name in state["alive"]]
        simulation.budget = self._next_mark()
        self._generation = generation = VirtualGeneration(simulation, state, members)
        self._monitor.attend(generation.workers, generation.servers, state["tallies"])
        if state["generation"] > 1:
            totals = self._monitor.totals
            unchanged = members == state["members"]
            simulation.emit(
                events.Generation(
                    simulation.clock.time,
                    state["generation"],
                    state["why"],
                    None if unchanged else members,
                    totals.updates,
                    totals.samples,
                )
            )

    def _next_mark(self) -> float:
        """After how many samples the next generation ends: at a checkpoint, or with the run."""
        job, samples = self.simulation.job, self._monitor.totals.samples
        budget = job.samples or math.inf
        every = job.checkpoint_every
        return budget if every is None else min(budget, (samples // every + 1) * every)

    def _border(self, why: str) -> RunState:
        """The state between two generations, with nothing in flight."""
        self._generation.close()
        self.simulation.clock.drop(lambda event: isinstance(event, Planned))
        state = take_state(self.simulation, self._generation, self._state)
        state["why"] = why
        state["books"] = self._monitor.books()
        return state

    def _generation_ended(self) -> None:
        self.simulation.clock.going_on = False

    def _note(self, what: str, fault: PlannedFault) -> None:
        self.simulation.emit(events.Fault(self.simulation.clock.time, fault.worker, what))

    def _kill(self, fault: PlannedFault) -> None:
        self._note("kill", fault)
        name, time, samples = fault.worker, self.simulation.clock.time, self._monitor.totals.samples
        raise MachineDied(
            f"{name} was killed at {time:g} s, after {samples} samples; the others cannot go on without it"
        )

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
