"""Fill places with what is found in them, several at once: whatever is known is kept at once, and never found again."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from claims.at_best import OutOfTime
from claims.running import one_thread

Kept = dict[str, dict[str, Any]]
"""Of one place: label → what was found."""


class Place(Protocol):
    """Where algorithms are compared: a frozen dataclass of plain values."""

    __dataclass_fields__: Any

    def __hash__(self) -> int: ...

    @property
    def leaders(self) -> int:
        """So many are searched one after the other; by them, all others are cut off, and so may run at once."""
        ...

    def labels(self) -> Sequence[str]:
        """Who takes part; the first ones are likely to be soonest, and cut off who is hopelessly late."""
        ...

    def guess(self, label: str, known: Mapping[Any, Kept]) -> float:
        """Where its search for a learning rate begins, given what is known of all places."""
        ...

    def find(self, label: str, known: Kept, guess: float, deadline: float) -> dict[str, Any]:
        """What becomes of one of them. Raises OutOfTime if that is not known by the deadline."""
        ...


P = TypeVar("P", bound=Place)


def read(path: Path, make: Callable[..., P]) -> dict[P, Kept]:
    """What was found so far; of what was found twice, the last."""
    found: dict[P, Kept] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        found.setdefault(make(**entry["cell"]), {}).update({each["label"]: each for each in entry["found"]})
    return found


class Filling:
    """All that is still to be found, in order, and what is under way."""

    def __init__(self, places: Sequence[P], known: dict[P, Kept], seconds: float, labels: Sequence[str] = ()) -> None:
        """All that is not known; with `labels`, of these alone."""
        self._known: dict[Any, Kept] = known
        self._deadline = time.monotonic() + seconds
        self._todo: dict[Any, list[str]] = {}
        for place in places:
            chosen = [label for label in place.labels() if not labels or label in labels]
            missing = [label for label in chosen if label not in known.get(place, {})]
            if missing:
                self._todo[place] = missing
        self._running: dict[Future[dict[str, Any]], tuple[Any, str]] = {}
        self.num_failed = 0

    @property
    def num_left(self) -> int:
        """Searches that have not ended."""
        return sum(map(len, self._todo.values())) + len(self._running)

    def fill(self, path: Path, processes: int) -> None:
        """Search until nothing is left or time is up; each result is kept as soon as it is known."""
        path.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, initializer=one_thread) as pool, path.open("a") as kept:
            while True:
                while len(self._running) < processes and (following := self._next()) is not None:
                    self._begin(pool, *following)
                if not self._running:
                    break
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    place, label = self._running.pop(future)
                    found = self._result(future, place, label)
                    if found is not None:
                        self._known.setdefault(place, {})[label] = found
                        kept.write(json.dumps({"cell": asdict(place), "found": [found]}) + "\n")
                        kept.flush()
                        print(f"{self.num_left} left; {place}: {label}", file=sys.stderr, flush=True)

    def _next(self) -> tuple[Any, str] | None:
        """The first that may begin, in the order of places: these are to be complete one after the other."""
        if time.monotonic() > self._deadline:
            return None
        for place, missing in self._todo.items():
            leaders_known = len(self._known.get(place, {})) >= min(place.leaders, len(place.labels()) - 1)
            if missing and (leaders_known or all(place != other for other, _ in self._running.values())):
                return place, missing.pop(0)
        return None

    def _begin(self, pool: ProcessPoolExecutor, place: Any, label: str) -> None:
        guess = place.guess(label, self._known)
        future = pool.submit(place.find, label, self._known.get(place, {}), guess, self._deadline)
        self._running[future] = place, label

    def _result(self, future: Future[dict[str, Any]], place: Any, label: str) -> dict[str, Any] | None:
        try:
            return future.result()
        except OutOfTime:
            return None
        except Exception:  # what others find out is worth keeping, whatever happens to one
            self.num_failed += 1
            print(f"{place}: {label} failed\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            return None


def best_s(known: Kept) -> float:
    """Seconds of the soonest, infinite if none was there."""
    means = [mean for each in known.values() if (mean := mean_s(each)) is not None]
    return min(means, default=float("inf"))


def mean_s(found: Mapping[str, Any]) -> float | None:
    """Mean seconds over seeds; None if one of them was never there, or too late."""
    seconds = [each for each in found["seconds"] if each is not None]
    return sum(seconds) / len(seconds) if seconds and len(seconds) == len(found["seconds"]) else None
