"""What the loops of a run deal out, what is left of it, and what a checkpoint has left of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.claims import Claim, Places, left_of
from ownpace.engines.process.node.worker import ProcessWorker


class LoopData:
    """How far the data of a run has been dealt out and learnt from."""

    def __init__(self) -> None:
        self.generation = 0
        """The number of the latest loop."""
        self.begun = 0
        """How many loops this run has begun, as far as this rank has come."""
        self.is_missed = False
        """Whether the loop that this rank was about to begin is over for the others."""
        self.dealt: Sequence[Places] | None = None
        """The places of its data that the running loop deals out."""
        self.resumed: Sequence[Places] | None = None
        """What a checkpoint has left of the loop that begins next."""
        self.kept: dict[str, Tensor] = {}
        """What the algorithm keeps from loop to loop."""
        self.alike: dict[str, str] = {}
        """What describes the data of the latest loop, or of the one in a checkpoint."""
        self.checkpoint = "none"
        """In words, where this run goes on from: all ranks must have loaded the same."""
        self.given: Sequence[Places] | None = None
        """What the others have left of the loop that this rank is about to begin."""
        self.is_complete = False
        """Whether the latest loop ended with its data."""
        self.first_sample = 0
        """How many samples were in the parameters when places were last dealt out."""

    def go_on_from(
        self,
        loop: int,
        left: Sequence[Places] | None,
        kept: Mapping[str, Tensor],
        alike: Mapping[str, str],
        words: str,
    ) -> None:
        """Go on from a checkpoint, which `words` describe: after that loop, or within it, if something is left."""
        self.generation = loop if left is None else loop - 1
        self.resumed, self.alike, self.checkpoint = left, dict(alike), words
        self.kept.clear()
        self.kept.update(kept)

    @property
    def latest(self) -> int:
        """The number of the loop that runs or is to be gone on with; else, of the latest one."""
        return self.generation if self.resumed is None else self.generation + 1

    def check_resumed(self, alike: dict[str, str], num_workers: int) -> None:
        """Raise if the loop that a checkpoint was taken in was one over other data."""
        described = {**alike, "number of workers": str(num_workers) if alike.get("sampling") != "queue" else "any"}
        if self.resumed is not None:
            for name in ("kind of data", "number of samples", "sampling", "order", "number of workers"):
                before, now = self.alike.get(name), described.get(name)
                if before != now:
                    raise InputError(
                        f"the checkpoint is of a loop whose {name} was {before}, here it is {now}; go on with the "
                        "same, or load the model and the optimizer alone, with load_state_dict of their own"
                    )
        self.alike = described

    @property
    def stage(self) -> int:
        """Twice the number of the latest loop, and one more when it is over."""
        return 2 * self.generation + (self.dealt is None)

    def begin_loop(self, worker: ProcessWorker, everything: Sequence[Places]) -> int:
        """A loop begins, over all these places or what is left of them; returns its number."""
        self.generation += 1
        self.begun += 1
        self.deal(self.left_of_next(everything), worker.progress.samples)
        self.resumed = self.given = None
        return self.generation

    def left_of_next(self, everything: Sequence[Places]) -> Sequence[Places]:
        """What the next loop deals out: all these places, or what others or an earlier run have left of them."""
        left = self.resumed if self.given is None else self.given
        return everything if left is None else left

    def catch_up(self, stage: int, begun: int, left: Sequence[Places], *, is_new: bool) -> bool:
        """This rank is in no loop; the others are at this stage. Returns whether they are in the one that it begins.

        Args:
            stage: Theirs.
            begun: How many loops they have begun.
            left: What is left of the latest.
            is_new: Whether this rank was started again, and has what they have from now on.
        """
        in_next = begun > self.begun and stage % 2 == 0
        self.given = left if in_next else None
        if is_new:
            self.resumed = None
            self.generation = stage // 2 - in_next
            self.is_missed = begun > self.begun and not in_next
            self.begun = begun - in_next
        return in_next

    def deal(self, places: Sequence[Places], samples: int) -> None:
        """Deal these out from now on, where this many samples are in the parameters already."""
        self.dealt, self.first_sample = places, samples

    def end_loop(self, *, complete: bool) -> None:
        """The loop is over."""
        self.dealt, self.is_complete = None, complete

    def left(self, claims: Sequence[Claim], used: Sequence[int] | None, samples: int) -> list[Places]:
        """The places that the running loop has still to learn from, once `samples` are in the parameters.

        `used` says how many each rank has used up of those that it took; None: not known.
        """
        assert self.dealt is not None
        return left_of(self.dealt, claims, used, samples - self.first_sample)
