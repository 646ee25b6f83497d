"""The nodes of a run that are there, those about to join, and who has ended the running generation."""

from __future__ import annotations

import logging

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.hub.config import Elasticity

log = logging.getLogger(__name__)


class Members:
    """Who is there. The rules are those of the run: how many workers it may have, and needs."""

    def __init__(self, config: Elasticity) -> None:
        self._config = config
        self.there = {node.name for node in config.terms.roster().nodes}
        """All nodes that are, those that are not needed now included."""
        self.fresh: set[str] = set()
        """Those among them that another process was in the latest generation."""
        self._joining: dict[str, bool] = {}
        """Those about to join, and whether they are ready."""
        self._ended: set[str] = set()
        self._through: set[str] = set()

    @property
    def workers(self) -> list[str]:
        """The workers that are there, in the order of the fleet."""
        return [name for name in self._config.terms.workers if name in self.there]

    @property
    def joining(self) -> set[str]:
        """Those that are about to take part."""
        return set(self._joining)

    @property
    def some_can_join(self) -> bool:
        """Whether one of them is ready."""
        return any(self._joining.values())

    def missing(self) -> list[str]:
        """The servers and communicators that are needed and are not there."""
        nodes = self._config.terms.roster(self.workers).nodes
        return [node.name for node in nodes if node.name not in self.there]

    def can_do_without(self, *names: str) -> bool:
        """Whether the other workers can go on without these nodes."""
        left = [worker for worker in self.workers if worker not in names]
        if len(left) < max(1, self._config.min_workers):
            return False
        try:
            roster = self._config.terms.roster(left)
        except InputError as error:  # an algorithm may be told how its workers are divided
            log.warning("%s", error)
            return False
        return not roster.by_name.keys() & set(names)

    def lose(self, name: str) -> bool:
        """A node is gone; returns whether it was there."""
        self._joining.pop(name, None)
        self.fresh.discard(name)
        was_there = name in self.there
        self.there.discard(name)
        return was_there

    def welcome(self, name: str) -> bool:
        """A worker wants to join; returns whether it may."""
        most = self._config.max_workers or len(self._config.terms.workers)
        if len(self.workers) + len(self._joining) >= most and name not in self._joining:
            return False
        self._joining[name] = False
        return True

    def is_ready(self, name: str) -> bool:
        """A node is ready to join; returns whether it has been asked to: a worker must have been welcomed."""
        if name in self._config.terms.workers and name not in self._joining:
            return False
        self._joining[name] = True
        return True

    def regroup(self) -> None:
        """A generation ends: those that are ready belong to the next."""
        self._ended.clear()
        self._through.clear()
        for name in [name for name, is_ready in self._joining.items() if is_ready]:
            del self._joining[name]
            self.there.add(name)
            self.fresh.add(name)

    def end(self, name: str, *, is_through: bool) -> bool:
        """A worker has ended the generation; returns whether all have."""
        self._ended.add(name)
        if is_through:
            self._through.add(name)
        return not self.awaited

    def has_ended(self, name: str) -> bool:
        """Whether this one has ended it."""
        return name in self._ended

    @property
    def awaited(self) -> list[str]:
        """The workers that others wait for: those have ended this generation, these have not."""
        return [name for name in self.workers if name not in self._ended] if self._ended else []

    @property
    def is_through(self) -> bool:
        """Whether the algorithm has done all it wanted to: begun anew, it would do it again."""
        return self._through >= set(self.workers)
