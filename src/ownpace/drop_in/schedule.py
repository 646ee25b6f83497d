"""Learning-rate schedules that follow the fleet instead of the batches of one rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, PolynomialLR, ReduceLROnPlateau

from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.learning.group_settings import GroupSettings

Every = Literal["update", "epoch"]


class Reached(NamedTuple):
    """How far a fleet is, in steps of a schedule."""

    known: int
    """The same on all ranks after the same update."""
    guessed: int
    """With local steps since: how many all workers have made is a guess of each rank's own."""


class FollowedSchedule:
    """A scheduler of torch's that is stepped by the fleet; the script's own calls of `step` do nothing meanwhile."""

    def __init__(
        self,
        scheduler: LRScheduler,
        reached: Callable[[], Reached],
        watch: StepsOfScript | None = None,
    ) -> None:
        """`watch`: looks at the script's own calls of `step`."""
        self.scheduler = scheduler
        self._reached = reached
        self._taken = reached().guessed
        self._guesses: _Guesses | None = None
        self._with_an_end = [one for one in parts_of(scheduler) if isinstance(one, OneCycleLR)]
        self._class = type(scheduler)
        # Another class, not another attribute: a scheduler's attributes are its state_dict.
        bases = _StepsOfScriptIgnored, self._class
        scheduler.__class__ = type(self._class.__name__, bases, {"watch": watch})

    def go_on(self) -> None:
        """Step the scheduler to where the fleet is."""
        known, guessed = self._reached()
        self._step_to(known)
        if self._taken == known:
            self._guesses = _Guesses(self.scheduler, known) if known < guessed else None
        self._step_to(guessed)

    def settle(self) -> None:
        """A loop has ended: wherever a rank's guesses have led, all ranks go on from the same step."""
        known = self._reached().known
        if self._guesses is not None and known < self._taken:
            self._guesses.undo()
            self._taken = self._guesses.taken
        self._guesses = None
        self._step_to(known)

    def stay(self) -> None:
        """The fleet counts from elsewhere now; the scheduler's own state is as it should be."""
        self._taken, self._guesses = self._reached().guessed, None

    def release(self) -> None:
        """Hand the scheduler back to the script."""
        self.scheduler.__class__ = self._class

    def _step_to(self, position: int) -> None:
        while self._taken < position:
            self._taken += 1
            if not any(map(has_ended, self._with_an_end)):
                # What torch looks for, to warn of a scheduler that goes on before its optimizer does. This rank may not
                # have called `optimizer.step()` yet, where others have made updates.
                self.scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]
                with nullcontext() if self._guesses is None else self._guesses.noting():
                    self._class.step(self.scheduler)


class _Guesses:
    """Steps of a scheduler that may turn out to be too many, and what they have changed."""

    def __init__(self, scheduler: LRScheduler, taken: int) -> None:
        self.taken = taken
        """Steps before the first of them."""
        self._scheduler = scheduler
        self._state = _with_own_numbers(scheduler.state_dict())
        self._settings = GroupSettings([scheduler.optimizer])
        self._were: dict[int, float] = {}
        """Of those settings that a step has changed, by their places. A script may change others: these stay."""

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Within, the scheduler makes a step."""
        before = self._settings.read()
        yield
        for place, (was, is_) in enumerate(zip(before, self._settings.read(), strict=True)):
            if was != is_:
                self._were.setdefault(place, was)

    def undo(self) -> None:
        """Bring scheduler and optimizer back to where they were."""
        self._scheduler.load_state_dict(self._state)
        self._settings.assign([self._were.get(place, is_) for place, is_ in enumerate(self._settings.read())])


def _with_own_numbers(state: Any) -> Any:
    """A state whose numbers stay as they are when a step changes the original's.

    All else in it is the same object: a step makes no other, and it may be large, or something that cannot be copied (a
    model, a lock, an open file).
    """
    if type(state) is dict:
        return {key: _with_own_numbers(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_with_own_numbers, state))
    return state.clone() if isinstance(state, Tensor) and state.numel() == 1 else state


class _StepsOfScriptIgnored(LRScheduler):
    watch: ClassVar[StepsOfScript | None] = None

    def step(self, epoch: int | None = None) -> None:
        """The fleet steps this scheduler: see `fleet.schedule`."""
        if self.watch is not None:
            self.watch.look(epoch)


class StepsOfScript:
    """Looks at how a script calls `step` of a scheduler that goes on with every update: it may count epochs instead."""

    def __init__(self, is_in_loop: Callable[[], bool]) -> None:
        self._is_in_loop = is_in_loop
        self._has_warned = False

    def look(self, epoch: float | None) -> None:
        """The script has called `step`."""
        if epoch is not None:
            raise InputError(
                f"scheduler.step was called with {epoch}, but the fleet counts its steps, one for each step of the "
                "script: make the schedule for that many steps and leave the number out, or do not give the scheduler "
                "to the fleet"
            )
        if not (self._is_in_loop() or self._has_warned):
            self._has_warned = True
            warnings.warn(
                "scheduler.step was called between loops over fleet.batches, as for a schedule that counts epochs, but "
                'the fleet steps it after each update; say fleet.schedule(scheduler, every="epoch")',
                stacklevel=4,
            )


def check_schedule(scheduler: object, every: str) -> None:
    """Raise if a fleet cannot step this scheduler."""
    if every not in get_args(Every):
        raise unknown("every", every, get_args(Every))
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "fleet.schedule was given a ReduceLROnPlateau, which needs a value to go by; step it yourself after each "
            "loop over fleet.batches, with a value that is the same on all ranks"
        )
    if not isinstance(scheduler, LRScheduler):
        raise InputError(
            f"fleet.schedule was given a {type(scheduler).__name__}; it takes torch's schedulers (LRScheduler). "
            "Set others yourself, by fleet.updates, fleet.samples or fleet.epoch"
        )
    if isinstance(scheduler, _StepsOfScriptIgnored):
        raise InputError("fleet.schedule was given the same scheduler twice; give each one once")


def parts_of(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    """The scheduler, and those that it is made of (SequentialLR, ChainedScheduler)."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from parts_of(part)


def has_ended(scheduler: OneCycleLR) -> bool:
    """Whether another step would lead beyond a schedule that has an end: OneCycleLR raises there."""
    return scheduler.last_epoch + 1 >= scheduler.total_steps


def warn_of_too_long(scheduler: LRScheduler, num_workers: int) -> None:
    """Warn if a schedule was made for the steps of one machine, of which each of several makes only a part."""
    for part in parts_of(scheduler):
        if isinstance(part, OneCycleLR):
            steps = part.total_steps
        elif isinstance(part, CosineAnnealingLR):
            steps = part.T_max
        elif isinstance(part, PolynomialLR):
            steps = part.total_iters
        else:
            continue
        made = part.last_epoch
        if num_workers > 1 and made > 1 and abs(steps - num_workers * made) <= num_workers:
            warnings.warn(
                f"{type(part).__name__} was made for {steps} steps and ended at {made}: {num_workers} workers share "
                "the data, and a schedule counts steps of all; make it for len(fleet.batches(…)) in each epoch",
                stacklevel=3,
            )
