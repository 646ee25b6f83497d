"""What the models of all workers have in common besides the parameters that are trained."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ownpace.engines.process.node.loop import held_by_servers
from ownpace.engines.process.node.nodes import ProcessWorker

_COUNTS = (torch.int32, torch.int64)


def share_others(worker: ProcessWorker, tensors: Iterable[Tensor]) -> None:
    """Begin with what rank 0 has, on all workers: buffers (running statistics, say), parameters that nothing trains."""
    channels = worker.sums.of(worker.workers).channels
    for tensor in tensors:
        if tensor.numel():
            worker.sums.wait(channels.broadcast(tensor, 0), "workers")


def agree(worker: ProcessWorker, model: nn.Module) -> None:
    """After the last sample of a loop: all workers have the global parameters, and the mean of all running statistics.

    Of counts (how many batches a BatchNorm has seen), all have the largest.
    """
    num_workers = len(worker.workers)
    channels = worker.sums.of(worker.workers).channels
    if len(worker.servers):
        # The first worker to stop waits here for the others' last gradients, or it would pull parameters without them.
        worker.sums.wait(channels.all_reduce(worker.learner.held.values.new_zeros(1)), "workers")
    for parameters in held_by_servers(worker):
        worker.place(parameters)
    if num_workers == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point() and buffer.numel():
            total = buffer.detach() / num_workers
            worker.sums.wait(channels.all_reduce(total), "workers")
            buffer.copy_(total)
        elif buffer.dtype in _COUNTS and buffer.numel():
            # A sum in which each worker has a place of its own, then the largest: channels only add.
            places = buffer.new_zeros((num_workers, *buffer.shape))
            places[worker.rank] = buffer
            worker.sums.wait(channels.all_reduce(places), "workers")
            buffer.copy_(places.amax(0))
