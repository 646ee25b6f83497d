"""The hub keeps the books of a run: it hears all nodes, judges the model, and says when to start and to go home.

It runs in the launcher, or in a thread beside rank 0. Training does not pass through it: if it is slow, nobody waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ownpace.core.contract import errors, events
from ownpace.core.contract.errors import DivergenceError, InputError, MachineDied, OwnpaceError
from ownpace.core.learning.flat import Buffers
from ownpace.core.learning.task import Score
from ownpace.engines.job import OnProgress, ProgressReport
from ownpace.engines.learning import RealLearning
from ownpace.engines.process.talk.mailbox import Post
from ownpace.engines.process.talk.shared_memory import PlaceError
from ownpace.engines.process.talk.wire import Limits, Packet, WireError, unpack
from ownpace.engines.roster import Roll

_HEAD_START_S = 0.05
_GRACE_S = 2.0
"""How long after the first complaint a better explanation may come."""


class NodeFailed(OwnpaceError):
    """The code of a node raised what nobody expected; its traceback was printed where it runs."""


@dataclass
class Seen:
    """What the hub knows of one node."""

    stats: dict[str, Any] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    digest: str = ""


@dataclass(frozen=True)
class Rules:
    """What the hub must know of the run."""

    header: events.Run
    replicas_identical: bool
    limit_samples_per_s: Callable[[float], float] | None
    """What the workers' prescribed paces allow; None: what they show counts."""
    eval_every: int | None = None
    target: float | None = None
    stop_at_target: bool = False
    judge_after: bool = False
    """Whether snapshots are kept and judged at the end."""


class Hub:
    """All that is known of a run."""

    def __init__(
        self,
        post: Post,
        roll: Roll,
        rules: Rules,
        emit: events.Emit,
        on_progress: OnProgress | None,
        judge: RealLearning | None,
    ) -> None:
        self.post = post
        self._roll = roll
        self._rules = rules
        self._send_on = emit
        self._on_progress = on_progress
        self._judge = judge
        whole = roll.workers.members[0].shard
        num_buffers = 0 if judge is None else sum(buffer.numel() for buffer in judge.new_buffers())
        self._limits = Limits(roll.shards or (whole,), max(whole.stop, num_buffers))
        self._names = [node.name for node in roll.nodes]
        self._seen = {name: Seen() for name in self._names}
        self._fingerprints: dict[str, dict[str, str]] = {}
        self._set: set[str] = set()
        self.ended: set[str] = set()
        """Who has done all there was to do."""
        self.missed: set[str] = set()
        """Whose process is over."""
        self._released = False
        self._complaints: list[tuple[bool, OwnpaceError]] = []
        self._complained_s = math.inf
        self._last_version = 0
        self._started = False
        self._stop_said = False
        self._refused = False
        self._zero_s = 0.0
        self._brief: list[str] = []
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ownpace-judge")
        self._judging: list[tuple[dict[str, Any], Future[Score]]] = []
        self._kept: list[tuple[dict[str, Any], Tensor, list[Buffers]]] = []
        self._shards: dict[int, dict[int, Tensor]] = {}
        self._buffers: dict[str, Tensor] = {}
        self._next_progress_s = 0.0
        self.values: Tensor | None = None
        """The latest parameters that were shown, whole."""
        self.error: OwnpaceError | None = None
        self.done = False

    @property
    def started(self) -> bool:
        """Whether time has begun."""
        return self._started

    @property
    def samples(self) -> int:
        """Of all updates so far, as far as known."""
        return int(self._leading().get("samples", 0))

    # ---- the loop ----

    def begin(self) -> None:
        """Write the first record, and judge the model before training."""
        self._emit(self._rules.header)
        if self._judge is not None:
            self.values = self._judge.initial
            self._judge_model({"t": 0.0, "samples": 0, "updates": 0, "final": False})

    def look(self, timeout_s: float) -> None:
        """Take in what has come, waiting for it at most that long."""
        wait: float | None = timeout_s
        while True:
            try:
                letter = self.post.receive(wait)
                if letter is None:
                    break
                wait = 0.0
                name, packet = letter[0], unpack(letter[1], self._limits)
            except (WireError, PlaceError) as error:  # of somebody who died while writing, most likely
                self.complain(error, secondary=True)
                continue
            if packet.control is not None and name in self._seen:
                self._take(name, packet.control, packet.body if isinstance(packet.body, Tensor) else None)
        self._take_scores(wait_for_all=False)
        if self._complaints and time.monotonic() > self._complained_s + _GRACE_S:
            self.error = self.error or self.worst()
        if len(self.ended) == len(self._names) and not self._judging:
            self.done = True

    def _take(self, name: str, control: Mapping[str, Any], body: Tensor | None) -> None:
        what, seen = control["what"], self._seen[name]
        if what == "report":
            seen.stats, seen.work, seen.now = control["stats"], control["work"], control["now"]
            for line in control["events"]:
                self._relay(events.from_line(line))
            self._show_progress()
        elif what == "snapshot" and body is not None:
            self._assemble(control, body)
        elif what == "buffers" and body is not None:
            self._buffers[name] = body
        elif what == "ready":
            self._fingerprints[name] = control["fingerprint"]
            if len(self._fingerprints) == len(self._roll.workers):
                self._compare()
        elif what == "clock":
            self.tell(name, "clock", now=time.monotonic())
        elif what == "set":
            self._set.add(name)
            if len(self._set) == len(self._names) and not self._started:
                self._started = True
                self._zero_s = time.monotonic() + _HEAD_START_S
                self.tell_all("start", zero_s=self._zero_s)
        elif what == "ended":
            seen.digest = control["digest"]
            self.ended.add(name)
            if all(worker.name in self.ended for worker in self._roll.workers):
                self._release()
        elif what == "error":
            self.complain(_error_from(control), secondary=control["secondary"])

    def complain(self, error: OwnpaceError, *, secondary: bool) -> None:
        """Something went wrong. A secondary complaint is about what another's fault did to a node."""
        self._complaints.append((secondary, error))
        self._complained_s = min(self._complained_s, time.monotonic())
        if not secondary:
            self.error = self.error or error

    def settle(self, error: OwnpaceError) -> None:
        """Somebody beside the hub failed: give better explanations a moment, then go by that."""
        self.complain(error, secondary=True)

    def worst(self) -> OwnpaceError | None:
        """The complaint that explains most."""
        return min(self._complaints, key=lambda complaint: complaint[0])[1] if self._complaints else None

    def tell(self, name: str, what: str, **more: Any) -> None:
        """Write to one node."""
        self.post.send(name, Packet(control={"what": what, **more}))

    def tell_all(self, what: str, **more: Any) -> None:
        """Write to all nodes."""
        for name in self._names:
            self.tell(name, what, **more)

    def give_up(self, error: OwnpaceError) -> None:
        """Tell everybody who can be told that the run has failed."""
        if self._refused:
            return  # they know why
        for name in self._names:
            if self.post.knows(name):
                self.tell(name, "failed", message=str(error))

    def stop(self) -> None:
        """Ask everybody to come to an end, as if the budget were spent."""
        if not self._stop_said and self._started:
            self._stop_said = True
            self.tell_all("stop")

    # ---- before the start ----

    def _compare(self) -> None:
        """Refuse workers that do not train the same thing.

        Raises:
            InputError: They differ; it says who and in what.
        """
        names = [worker.name for worker in self._roll.workers]
        first = self._fingerprints[names[0]]
        differences = []
        for key, value in first.items():
            others = [name for name in names[1:] if self._fingerprints[name].get(key) != value]
            if others:
                theirs = self._fingerprints[others[0]].get(key, "nothing")
                ranks = ", ".join(str(names.index(name)) for name in others)
                plural = "s" if len(others) > 1 else ""
                differences.append(f"the {key} of rank{plural} {ranks} is {theirs}, that of rank 0 is {value}")
        if differences:
            error = InputError("the ranks do not fit together: " + "; ".join(differences) + "; start all of them alike")
            self._refused = True
            self.tell_all("refuse", message=str(error))
            self.complain(error, secondary=False)
        else:
            self.tell_all("go")

    # ---- what nodes report ----

    def _emit(self, event: events.Event) -> None:
        self._send_on(event)
        if isinstance(event, events.Run | events.Evaluation | events.End):
            self._brief.append(events.to_line(event))

    def _relay(self, event: events.Event) -> None:
        """Pass an event on; of updates of the same version, which replicas make, only the first."""
        if isinstance(event, events.Update) and not self._roll.servers:
            if event.version <= self._last_version:
                return
            self._last_version = event.version
        self._emit(event)

    def _leading(self) -> dict[str, Any]:
        """The sums of whoever's updates are those of the run."""
        if self._roll.servers:
            return self._seen[self._roll.servers[0].name].stats
        stats = [seen.stats for worker in self._roll.workers if (seen := self._seen[worker.name]).stats]
        return max(stats, key=lambda one: (one["updates"], -one["t"]), default={})

    def _show_progress(self) -> None:
        now = time.monotonic()
        if self._on_progress is None or now < self._next_progress_s or not self._started:
            return
        self._next_progress_s = now + 0.1
        paces, busy, losses = {}, {}, []
        for worker in self._roll.workers:
            seen = self._seen[worker.name]
            compute_s = seen.work.get("compute_s", 0.0)
            paces[worker.name] = seen.work["samples"] / compute_s if compute_s else 0.0
            busy[worker.name] = min(1.0, compute_s / seen.now) if seen.now > 0 else 0.0
            if seen.work.get("loss") is not None:
                losses.append(seen.work["loss"])
        leading = self._leading()
        progress = ProgressReport(
            samples=leading.get("samples", 0),
            seconds=max(leading.get("t", 0.0), 1e-9),
            loss=sum(losses) / len(losses) if losses else None,
            limit_samples_per_s=sum(paces.values()),
            paces=paces,
            busy=busy,
        )
        self._on_progress(progress)

    # ---- judging ----

    def _assemble(self, control: Mapping[str, Any], body: Tensor) -> None:
        """Put the shards of a model together; judge it when they are all there."""
        if not self._roll.servers:
            self.values = body
            self._judge_model(control)
            return
        mark = -1 if control["final"] else control["samples"] // (self._rules.eval_every or 1)
        shards = self._shards.setdefault(mark, {})
        shards[control["shard"]] = body
        if len(shards) == len(self._roll.servers):
            self.values = torch.cat([shards[index] for index in range(len(shards))])
            del self._shards[mark]
            self._judge_model(control)

    def _judge_model(self, control: Mapping[str, Any]) -> None:
        if self._judge is None or self.values is None:
            return
        if self._judging and not control["final"] and len(self._judging) > 2:
            return  # judging does not keep up with training: leave this one out
        buffers = self._worker_buffers()
        if self._rules.judge_after:
            self._kept.append((dict(control), self.values, buffers))
        else:
            self._judging.append((dict(control), self._executor.submit(self._judge.score, self.values, buffers)))

    def _worker_buffers(self) -> list[Buffers]:
        assert self._judge is not None
        like = self._judge.new_buffers()
        if not self._buffers:
            return [like]
        sizes = [buffer.numel() for buffer in like]
        return [
            [part.view(buffer.shape).to(buffer) for part, buffer in zip(flat.split(sizes), like, strict=True)]
            for flat in self._buffers.values()
        ]

    def _take_scores(self, *, wait_for_all: bool) -> None:
        while self._judging and (wait_for_all or self._judging[0][1].done()):
            control, future = self._judging.pop(0)
            try:
                score = future.result()
            except Exception as error:  # a task's own code, or a card that is full
                self.complain(NodeFailed(f"judging the model: {type(error).__name__}: {error}"), secondary=False)
                continue
            loss = score.loss if math.isfinite(score.loss) else None
            self._emit(events.Evaluation(control["t"], control["samples"], control["updates"], loss, score.accuracy))
            if loss is None:
                reason = f"the test loss is {score.loss} at sample {control['samples']}: training diverged"
                self.complain(DivergenceError(f"{reason}; try a smaller lr"), secondary=False)
            target, accuracy = self._rules.target, score.accuracy
            if self._rules.stop_at_target and target is not None and accuracy is not None and accuracy >= target:
                self.stop()

    # ---- the end ----

    def _release(self) -> None:
        """All workers have ended: servers and communicators may end, too."""
        if not self._released:
            self._released = True
            for node in self._roll.nodes:
                if node.role != "worker":
                    self.tell(node.name, "release")

    def finish(self, reason: str) -> None:
        """Write the last record."""
        for control, values, buffers in self._kept:
            assert self._judge is not None
            self._judging.append((control, self._executor.submit(self._judge.score, values, buffers)))
        self._take_scores(wait_for_all=True)
        self._executor.shutdown()
        now = (time.monotonic() - self._zero_s) if self._started else 0.0
        self._emit(events.End(now, reason, self._sums(now)))

    def farewell(self) -> None:
        """Let everybody go home, knowing what became of the run."""
        self.tell_all("bye", events=self._brief)

    def _sums(self, now: float) -> events.Sums:
        leading = self._leading()
        updates = leading.get("updates", 0)
        seconds = leading["t"] if leading.get("frozen") or self.done else now if leading else 0.0
        tallies, shown = {}, 0.0
        for worker in self._roll.workers:
            work = self._seen[worker.name].work
            compute_s = work.get("compute_s", 0.0)
            shown += work["samples"] / compute_s if compute_s else 0.0
            late_s = sum(end - max(start, seconds) for start, end in work.get("spans", ()) if end > seconds)
            tallies[worker.name] = events.Tally(
                work.get("samples", 0), max(0.0, compute_s - late_s), work.get("load_s", 0.0)
            )
        limit = self._rules.limit_samples_per_s
        return events.Sums(
            seconds=seconds,
            samples=leading.get("samples", 0),
            updates=updates,
            staleness_mean=leading.get("staleness_sum", 0) / max(1, updates),
            staleness_max=leading.get("staleness_max", 0),
            limit_samples_per_s=shown if limit is None else limit(seconds),
            workers=tallies,
            replicas_identical=self.replicas_identical(),
        )

    def replicas_identical(self) -> bool | None:
        """Whether all workers ended with the same bits, where that was promised and all have ended."""
        digests = [self._seen[worker.name].digest for worker in self._roll.workers]
        if not self._rules.replicas_identical or not all(digests):
            return None
        return len(set(digests)) == 1

    def model(self) -> dict[str, Tensor]:
        """The model as it was last shown, by names."""
        if self._judge is None or self.values is None:
            return {}
        return self._judge.export(self.values, self._worker_buffers())


def error_letter(who: str, error: BaseException) -> dict[str, Any]:
    """What a node that fails tells the hub."""
    secondary = isinstance(error, PlaceError) or (isinstance(error, MachineDied) and "is gone" in str(error))
    if isinstance(error, OwnpaceError):
        return {"kind": type(error).__name__, "message": str(error), "secondary": secondary}
    return {"kind": "NodeFailed", "message": f"{who}: {type(error).__name__}: {error}", "secondary": False}


def _error_from(control: Mapping[str, Any]) -> OwnpaceError:
    kind = getattr(errors, str(control["kind"]), NodeFailed)
    if not (isinstance(kind, type) and issubclass(kind, OwnpaceError)):
        kind = NodeFailed
    return kind(str(control["message"]))
