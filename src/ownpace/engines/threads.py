"""How many threads of torch's a run in one process is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ownpace.core.learning.layer_work import multiplications
from ownpace.engines.job import Job

_LEAST_WORK = 2_000_000
"""Multiplications of a batch's forward pass, about 0.2 ms of one core, below which a second thread saves nothing."""


@contextmanager
def threads_that_pay(job: Job) -> Iterator[None]:
    """One thread for tiny nets. More of them wait for each other in every layer: in vain on an idle machine, and fifty
    times as long as one takes on a busy one, where the others have to be given a core first.
    """
    before = torch.get_num_threads()
    if before > 1 and not job.timing_only and torch.device(job.device).type == "cpu":
        work = multiplications(job.task)
        if work is not None and work * job.batch_size < _LEAST_WORK:
            torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


__all__ = ["threads_that_pay"]
