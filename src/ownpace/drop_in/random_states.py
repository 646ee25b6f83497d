"""Random numbers for what a user wrote: his functions draw from global generators, which are swapped around them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ownpace.core.learning.seeds import derive


class States(NamedTuple):
    """Those of all global generators: torch's, numpy's and Python's."""

    cpu: Tensor
    cuda: Tensor | None
    numpy: Any
    python: Any


def read_states() -> States:
    """As they are now."""
    # Asked only where it has begun: CUDA must not be initialised by this, nor before workers are forked.
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return States(torch.get_rng_state(), cuda, np.random.get_state(), random.getstate())


def set_states(states: States) -> None:
    """As they were."""
    torch.set_rng_state(states.cpu)
    if states.cuda is not None:
        torch.cuda.set_rng_state(states.cuda)
    np.random.set_state(states.numpy)
    random.setstate(states.python)


def states_to_plain(states: States) -> dict[str, Tensor | list[object]]:
    """As what a checkpoint can hold."""
    kind, keys, *rest = states.numpy
    version, numbers, spare = states.python
    plain: dict[str, Tensor | list[object]] = {
        "cpu": states.cpu,
        "numpy": [str(kind), torch.from_numpy(np.array(keys, dtype=np.int64)), *rest],
        "python": [version, torch.tensor(numbers, dtype=torch.int64), spare],
    }
    return plain if states.cuda is None else {**plain, "cuda": states.cuda}


def states_from_plain(plain: Mapping[str, Any]) -> States:
    """The other way round."""
    kind, keys, *rest = plain["numpy"]
    version, numbers, spare = plain["python"]
    cuda = plain.get("cuda") if torch.cuda.is_initialized() else None
    numpy = (kind, keys.numpy().astype(np.uint32), *rest)
    return States(plain["cpu"], cuda, numpy, (version, tuple(numbers.tolist()), spare))


def seed_states(seed: int) -> None:
    """All from one seed."""
    # Not torch.manual_seed: where CUDA has not begun, it would also seed it, later and without anyone's knowing.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What is drawn in here comes from this seed; afterwards, the script's generators are as they were."""
    before = read_states()
    seed_states(seed)
    try:
        yield
    finally:
        set_states(before)


class Generators:
    """Generators that belong to one thing, and go on where they were each time that it draws."""

    def __init__(self, seed: int, own: torch.Generator | None = None) -> None:
        """Generators.

        Args:
            seed: Of all of them.
            own: One that the thing has itself, besides the global ones.
        """
        self._seed = seed
        self._own = own
        self._states: tuple[States, Tensor | None] | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """What is drawn in here comes from them; afterwards, the script's generators are as they were."""
        before = self._read()
        if self._states is None:
            seed_states(self._seed)
            if self._own is not None:
                # Of its own seed as well: whoever seeds it otherwise wants another order.
                self._own.manual_seed(derive(self._seed, self._own.initial_seed()))
        else:
            self._set(self._states)
        try:
            yield
        finally:
            self._states = self._read()
            self._set(before)

    def _read(self) -> tuple[States, Tensor | None]:
        return read_states(), None if self._own is None else self._own.get_state()

    def _set(self, states: tuple[States, Tensor | None]) -> None:
        set_states(states[0])
        if self._own is not None and states[1] is not None:
            self._own.set_state(states[1])
