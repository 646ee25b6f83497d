"""Forks of this process, such as the workers of a script's DataLoader: what they must leave alone."""

from __future__ import annotations

import gc
import os
from functools import cache


@cache
def keep_garbage_from_forks() -> None:
    """Let no fork free what is garbage here: a group of gloo's would wait for threads that only its maker has."""
    os.register_at_fork(after_in_child=gc.freeze)
