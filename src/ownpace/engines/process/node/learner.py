"""The learner in a worker or server: its parameters, how they move, and what is counted and shown of that."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.values import Gradient, Parameters
from ownpace.core.learning.optimizer import SameBits
from ownpace.engines.ledger import EvaluationMarks
from ownpace.engines.process.node.alignment import Alignment
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.inbox import Inbox
from ownpace.engines.process.node.late_snapshot import LateSnapshot
from ownpace.engines.process.node.parameters import FlatParameters, HeldParameters
from ownpace.engines.process.node.replica_watch import ReplicaWatch, is_due, layer_checksums
from ownpace.engines.process.node.reporter import REPORT_EVERY_S
from ownpace.engines.process.node.settings_watch import SettingsWatch
from ownpace.engines.process.node.sums import ProcessSum
from ownpace.engines.process.node.unfinished import UnfinishedStep
from ownpace.engines.process.talk.control import Snapshot, WorkerBuffers
from ownpace.engines.progress import Progress


class LearnerState:
    """Parameters, the updates made to them, and the totals of those."""

    def __init__(
        self,
        context: NodeContext,
        progress: Progress,
        held: HeldParameters,
        inbox: Inbox,
        buffers: Callable[[], Tensor | None],
    ) -> None:
        self.held = held
        self._context = context
        self._progress = progress
        self._inbox = inbox
        self._buffers = buffers
        self._watch = ReplicaWatch(context)
        self.alignment = Alignment(context, inbox, held)
        self._shown = LateSnapshot(context.reporter.say)
        self._marks = EvaluationMarks(context.terms.eval_every or math.inf)
        self._away_from: Tensor | None = None
        self._used: list[int] | None = None
        self._local_samples = 0
        self._next_spread_s = 0.0
        self.has_stepped_alone = False
        """Whether it has made local steps, so that its optimizer's state is its own."""
        self.on_progress: Callable[[int], None] = _ignore
        """Called after every update or local step, and after parameters came from a server, with the samples of this
        worker's local steps since the last update."""
        self.on_stepped: Callable[[float], None] = _ignore
        """Called after every optimizer step, with the time at which it was begun."""
        self.settings_watch = SettingsWatch(held.difference)
        self._has_told = False

    @property
    def parameters(self) -> Parameters:
        """As they are now, never to change again."""
        return Parameters(self.held.snapshot(), self._progress.version, self._context.address.shard)

    @property
    def global_values(self) -> Tensor:
        """The global parameters, also while local steps have led away from them; only to look at."""
        return self.held.values if self._away_from is None else self._away_from

    def begin(self) -> None:
        """A loop over the data begins, or a generation of a complete run."""
        self._shown.drop()
        self.alignment.begin(self._progress.version)
        self._used = [0] * len(self._context.roster.workers)
        self._marks.go_on_from(self._progress.samples)

    def go_back(self) -> None:
        """Forget local steps since the last update, and one under way: whoever was to hear of them never will."""
        if isinstance(self.held, FlatParameters):
            self.held.drop_step()
        if self._away_from is not None:
            self.held.overwrite(self._away_from)
            self._away_from = None

    def checksums(self) -> list[int]:
        """Of each layer of the global parameters."""
        return layer_checksums(self.global_values, self._context.layout).tolist()

    @property
    def used(self) -> Sequence[int] | None:
        """Of each worker, how many samples of this loop are in the parameters, or were thrown away; None: not known."""
        return self._used

    def _use(self, gradient: Gradient) -> None:
        if not gradient.sources:
            self._used = None  # whose samples these are is not known
        elif self._used is not None:
            for rank, samples in gradient.sources:
                self._used[rank] += samples

    @property
    def lr(self) -> float:
        """The learning rate now."""
        return self.held.lr * self._lr_factor(1.0)

    def _lr_factor(self, scale: float) -> float:
        return self._context.terms.lr_factor(self._progress.scheduled) * scale

    def hear_settings(self, agreed: Sequence[float], mine: Sequence[float]) -> None:
        """Take in the optimizer settings that the members of the latest sum agreed on: those of the first.

        `mine`: this worker's own when it contributed, if they should be the same.
        """
        self.settings_watch.hear(agreed, mine)

    def step(
        self,
        gradient: Gradient,
        lr_scale: float,
        advance: float | None,
        memory: int,
        same_bits: SameBits = "everywhere",
    ) -> None:
        """Make an update; `same_bits`: where replicas have to get the same from it."""
        if gradient.samples:
            begun_s = self._context.clock.now()
            # Closed before the update is counted: a budget of time that is spent by now does not include it.
            self._maybe_close_totals(begun_s)
            self._away_from = None
            self.settings_watch.look()
            self.held.step(gradient, self._lr_factor(lr_scale), memory, self.settings_watch.agreed, same_bits=same_bits)
            self._made_update(gradient, advance)
            self.on_stepped(begun_s)

    @property
    def unfinished(self) -> UnfinishedStep | None:
        """An update of which layers are still to come."""
        return self.held.unfinished if isinstance(self.held, FlatParameters) else None

    def settle(self) -> None:
        """Make all of an update of which layers are still to come."""
        if self.unfinished is not None:
            self.unfinished.finish()

    def step_by_layer(
        self, summed: ProcessSum, lr_scale: float, advance: float | None, *, layers_count: bool
    ) -> Gradient:
        """Make an update with a sum as its layers arrive, if that can be done; returns what goes with the sum.

        `layers_count`: the next gradient can begin before all of them are there.
        """
        self.settle()
        held, progress = self.held, self._progress
        if not isinstance(held, FlatParameters) or not summed.comes_by_layer or not layers_count:
            gradient = summed.whole()
            self.step(gradient, lr_scale, advance, 0, summed.same_bits)
            return gradient.without_numbers()
        said = summed.begin()
        # The last update waits for all of it: nothing may be under way when the accounts are closed.
        is_last = (
            progress.samples + said.new_samples >= progress.budget or progress.version + 1 >= progress.last_version
        )
        goes = said.samples > 0 and not (is_last or progress.stop or said.partial)
        begun_s = self._context.clock.now()

        def end() -> None:
            # Only now: an update of which some layers never come has not been made.
            self._maybe_close_totals(self._context.clock.now())
            self._made_update(said, advance)

        if goes and held.begin_step(summed, said.samples, self._lr_factor(lr_scale), end):
            self._away_from = None
            self.on_stepped(begun_s)
        else:
            self._maybe_tell_of_waiting(held)
            self.step(summed.whole(), lr_scale, advance, 0, summed.same_bits)
        return said.without_numbers()

    def _maybe_tell_of_waiting(self, held: FlatParameters) -> None:
        if held.needs_whole_gradient and self._context.is_evaluated and not self._has_told:
            self._has_told = True
            warnings.warn(
                "this optimizer, or clip_norm, needs the whole gradient for each step: updates wait for all of their "
                "sums, and the next forward pass hides nothing of them",
                stacklevel=2,
            )

    def peek(self, gradient: Gradient, lr_scale: float) -> Parameters:
        """What an update would make of the parameters."""
        values = self.held.peek(gradient, self._lr_factor(lr_scale), self._settings_for(gradient))
        return Parameters(values, self._progress.version, self._context.address.shard)

    def local_step(self, gradient: Gradient, lr_scale: float) -> None:
        """Move the parameters; it is not an update."""
        if gradient.samples:
            self.has_stepped_alone = True
            begun_s = self._context.clock.now()
            # Of a sum, several take this step together, and stay together.
            same_bits: SameBits = "everywhere" if gradient.contributions else "nowhere"
            if self._away_from is None:
                self._away_from = self.held.snapshot()  # what an evaluation or a checkpoint in mid-round sees
            self.held.step(
                gradient, self._lr_factor(lr_scale), settings=self._settings_for(gradient), same_bits=same_bits
            )
            # Of a sum of several workers, this one's part.
            self._local_samples += gradient.samples // max(1, len(gradient.contributions))
            self.on_progress(self._local_samples)
            self.on_stepped(begun_s)

    def _settings_for(self, gradient: Gradient) -> Sequence[float]:
        """Those agreed on for a sum, so that its members stay together; for this worker's own gradient, its own."""
        return self.settings_watch.agreed if gradient.contributions else ()

    def commit(self, values: Tensor, work: Gradient, ahead: Tensor | None) -> None:
        """Make an update whose result is known; with `ahead`, go on from there."""
        if work.samples:
            begun_s = self._context.clock.now()
            self._maybe_close_totals(begun_s)
            self._away_from = None
            self.settings_watch.look_apart()
            if begun_s >= self._next_spread_s:  # some of them will do: on a GPU it waits
                self._next_spread_s = begun_s + REPORT_EVERY_S
                self._context.reporter.totals.add_spread(self.held.values, values)
            self.held.overwrite(values)
            # What is shown and checked of this update are the values that all have, so only then the way ahead.
            own = self._context.address.index
            left = 0 if ahead is None else max(0, self._local_samples - work.contributions[own].samples)
            self._made_update(work, None, left)
            if self.alignment.is_needed:
                # In place: the algorithm goes on from them, and would bring back what was made equal.
                values.copy_(self.held.values)
            if ahead is not None:
                self._away_from = values
                self.held.overwrite(ahead)
            self.on_stepped(begun_s)
        elif ahead is None:
            self.go_back()

    def place(self, parameters: Parameters) -> None:
        """Take over what a server sent."""
        self.held.place(parameters.values, parameters.shard)
        self.has_placed([parameters])

    def has_placed(self, all_parameters: Sequence[Parameters]) -> None:
        """What servers sent is in its places."""
        if not all_parameters:
            return
        self._away_from = None
        self._used = None  # a server knows how many samples are in its parameters, not whose they were
        for parameters in all_parameters:
            self._progress.placed(parameters)
        self.on_progress(0)
        if self._marks.passed(self._progress.samples):
            self.show(final=False)

    def _made_update(self, gradient: Gradient, advance: float | None, local_samples: int = 0) -> None:
        progress, reporter, now = self._progress, self._context.reporter, self._context.clock.now()
        self._use(gradient)
        staleness = progress.made_update(gradient, advance)
        reporter.totals.add(now, progress.version, progress.samples, staleness)
        if progress.samples >= self._context.terms.budget:
            reporter.totals.close(now)
        if reporter.detail:
            name, version = reporter.name, progress.version
            reporter.event(events.Update(now, name, version, gradient.samples, progress.samples, staleness))
        self._shown.look()
        if self._marks.passed(progress.samples):
            self.show(final=False)
        # Before the coroutine goes on: the next sum carries the settings that the schedule has arrived at by then.
        self._local_samples = local_samples
        self.on_progress(local_samples)
        if is_due(progress.version):
            self.alignment.align(progress.version)
        self._watch.made_update(progress.version, self.held.values)
        reporter.maybe_report(now)

    def last_checksums(self) -> list[int]:
        """Of each layer as it is at the end, where replicas are to be equal."""
        self.alignment.align(self._progress.version)
        return self._watch.last(self.held.values)

    def _maybe_close_totals(self, now: float) -> None:
        """Close the totals if the run's time is up: what follows is only the end of what was in flight."""
        terms = self._context.terms
        if terms.is_bounded and (now >= terms.deadline_s or self._inbox.ends_for_good):
            self._context.reporter.totals.close(min(now, terms.deadline_s))

    def show(self, *, final: bool) -> None:
        """Let the hub evaluate the parameters as they are now."""
        context, progress = self._context, self._progress
        self._shown.finish()  # before the buffers of this one
        buffers = self._buffers()
        if buffers is not None:
            context.reporter.say(WorkerBuffers(), buffers)  # before the parameters that they belong to
        if context.is_evaluated:
            shard = context.address.shard.index
            snapshot = Snapshot(context.clock.now(), progress.samples, progress.version, shard, final)
            self._shown.say(snapshot, self.held.snapshot())
            if final:
                self._shown.finish()


def _ignore(what: float) -> None:
    pass
