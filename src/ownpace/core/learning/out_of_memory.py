"""When memory does not suffice: one line that says for what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ownpace.core.contract.errors import InputError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there is not enough memory, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # On the CPU torch has no class of its own for it.
    return isinstance(error, RuntimeError) and "alloc" in str(error) and "memory" in str(error)


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Turn running out of memory into bad input.

    Raises:
        InputError: Memory does not suffice for `what`.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(f"there is not enough memory for {what}; use something smaller") from None
