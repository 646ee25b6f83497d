"""What all workers have in common besides the parameters that are trained: the rest of the models, and counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ownpace.engines.process.lives.worker_parts import at_home, share_parameters
from ownpace.engines.process.node.model_point import held_by_servers
from ownpace.engines.process.node.optimizer_parts import StateParts, packets
from ownpace.engines.process.node.user_pair import UserPair
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.control import PullState, StatePart
from ownpace.engines.process.talk.store import KeyValues
from ownpace.engines.process.talk.wire import Packet

_COUNTS = (torch.int32, torch.int64)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def begin_alike(worker: ProcessWorker, user: UserParameters, model: nn.Module) -> None:
    """Let all workers and servers begin with what rank 0 has."""
    if worker.rank == 0:
        give_to_servers(worker, user.pairs[0])  # before the parameters, with which a server is prepared
    user.take_in()
    share_parameters(worker)
    user.overwrite(user.values)
    share_others(worker, [*model.buffers(), *user.others])


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
    worker.learner.alignment.align(worker.progress.version)
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


def tell_of_parts(worker: ProcessWorker, model: nn.Module, user: UserParameters) -> None:
    """Warn if parameters that no optimizer has, which began alike, are something else on each worker by now."""
    trained = set(map(id, user.parameters))
    plain = {name: p for name, p in model.named_parameters() if type(p.data) is Tensor}
    others = {n: p for n, p in plain.items() if id(p) not in trained and p.element_size() in _INTEGERS}
    num_workers = len(worker.workers)
    if num_workers == 1 or not others:
        return
    # A sum in which each worker has a row of its own.
    sums = torch.zeros(num_workers, len(others), dtype=torch.int64, device=user.values.device)
    sums[worker.rank] = torch.stack([_checksum(parameter).to(sums.device) for parameter in others.values()])
    worker.sums.wait(worker.sums.of(worker.workers).channels.all_reduce(sums), "workers")
    differ = [name for name, column in zip(others, sums.T.tolist(), strict=True) if len(set(column)) > 1]
    if differ and worker.rank == 0:
        more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
        warnings.warn(
            f"{differ[0]}{more}, which no optimizer has, is another one on each rank after this loop: what the script "
            "writes there (a momentum encoder, an average?) follows the batches of its rank; write it in a hook that "
            "every update calls: optimizer.register_step_post_hook(…)",
            stacklevel=2,
        )


def _checksum(tensor: Tensor) -> Tensor:
    """Another one where a number differs; see `layer_checksums`."""
    bits = tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])
    return (bits + bits).add_(1).mul_(bits).sum(dtype=torch.int64)


def give_to_servers(worker: ProcessWorker, pair: UserPair) -> None:
    """Let the servers begin with the state of a script's optimizer, which may have made steps before."""
    states = {layer: dict(pair.optimizer.state.get(p, {})) for layer, p in enumerate(pair.parameters)}
    layers = worker.context.layout.layers
    for server in worker.servers:
        shard = server.shard
        mine = {n: state for n, state in states.items() if shard.start <= layers[n].start < shard.stop}
        for packet in packets(mine):
            worker.context.mailbox.send(server.name, packet)


def take_from_servers(worker: ProcessWorker, pair: UserPair) -> None:
    """Let a script's optimizer have the state that the servers have now."""
    for server in worker.servers:
        worker.context.mailbox.send(server.name, Packet(control=PullState()))
        parts, states = StateParts(range(len(pair.parameters))), None
        while states is None:
            states = parts.take(*worker.inbox.wait_for(StatePart))
        for layer, entry in states.items():
            parameter = pair.parameters[layer]
            (pair.optimizer.state[parameter],) = at_home([entry], parameter.device)


def shared_counter(store: KeyValues, name: str) -> Callable[[int], int]:
    """A count that all processes share: adds to it, and returns what it was before."""
    return lambda number: int(store.add(name, number)) - number
