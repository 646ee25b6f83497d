"""How a model is cut up where layers travel on their own, and how the time of a gradient divides among its layers.

Buckets. Parameter tensors are too many and too small to travel one by one: a bias, the two vectors of a norm. A bucket
is whole modules, side by side, and is closed as soon as it has 1/32 of the model's numbers. It never reaches over the
border of a shard. In sums every bucket costs a round of messages between all workers, so those are larger: an eighth of
the model, but 1 MiB at least and 4 MiB at most.

Work. A gradient is a forward and a backward pass, 1 : 2 in time, as each layer's backward pass computes two products
where the forward pass computes one. Inside a pass, a layer takes time in proportion to its multiplications: its
parameters times the places at which they are used. A linear layer is used once a sample (in a sequence, once for each
of its elements), a convolution at every pixel of its output. A task that knows better says so (`Task.layer_work`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError, listed
from ownpace.core.contract.values import Shard
from ownpace.core.learning.dataset_samples import samples_to_learn
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.task import Task

FORWARD_SHARE = 1 / 3
"""Of a gradient's time, the forward pass's."""
_MOST_BUCKETS = 32
"""Of a model, about: more would cost more messages, and save hardly any waiting."""

_BUCKETS_OF_A_SUM = 8
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 4 << 20
"""Of a bucket in a sum: large enough that latency hardly counts, small enough that several leave in a backward pass."""


class LayerBucket(NamedTuple):
    """Whole layers, side by side, that travel as one."""

    start: int
    """In the flat vector."""
    stop: int
    layers: range


def layer_buckets(layout: Layout, shard: Shard) -> tuple[LayerBucket, ...]:
    """The buckets of one shard, the lowest layers first.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))
    >>> [(bucket.start, bucket.stop) for bucket in layer_buckets(Layout(model), Shard(0, 0, 20))]
    [(0, 8), (8, 20)]
    """
    layers = layout.layers
    inside = [n for n, layer in enumerate(layers) if shard.start <= layer.start < shard.stop]
    buckets, first = [], inside[0]
    for index in inside:
        last = index == inside[-1]
        whole_module = not last and _module(layers[index].name) != _module(layers[index + 1].name)
        enough = (layers[index].stop - layers[first].start) * _MOST_BUCKETS >= layout.size
        if last or (whole_module and enough):
            buckets.append(LayerBucket(layers[first].start, layers[index].stop, range(first, index + 1)))
            first = index + 1
    return tuple(buckets)


def sum_buckets(layout: Layout, element_size: int) -> tuple[LayerBucket, ...]:
    """The buckets in which a gradient is summed, the last layers' first.

    >>> sum_buckets(Layout(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))), 4)
    (LayerBucket(start=0, stop=20, layers=range(0, 4)),)
    """
    enough = min(_MOST_BYTES, max(_LEAST_BYTES, layout.size * element_size // _BUCKETS_OF_A_SUM))
    layers, buckets = layout.layers, []
    above = len(layers)
    for index in range(len(layers) - 1, -1, -1):
        start, stop = layers[index].start, layers[above - 1].stop
        if index == 0 or (stop - start) * element_size >= enough:
            buckets.append(LayerBucket(start, stop, range(index, above)))
            above = index
    return tuple(buckets)


def work_shares(task: Task, layout: Layout) -> tuple[float, ...]:
    """Each layer's share of the time of a pass.

    Raises:
        InputError: What the task says does not fit the model.
    """
    names = [layer.name for layer in layout.layers]
    work = task.layer_work()
    if work is None:
        try:
            work = _multiplications(task)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            work = {}  # an objective of its own may call the model otherwise: then layers count by their parameters
    elif set(work) != set(names) or min(work.values()) < 0 or not 0 < sum(work.values()) < float("inf"):
        given = listed([f"{name}: {work[name]}" for name in work], 4)
        raise InputError(
            f"{type(task).__name__}.layer_work gives {given}; give each of the model's layers a number of at least 0, "
            f"not all 0: {listed(names, 8)}"
        )
    total = sum(work.get(name, 0.0) for name in names)
    if not total:  # no module has used its parameters as modules do
        return tuple((layer.stop - layer.start) / layout.size for layer in layout.layers)
    return tuple(work.get(name, 0.0) / total for name in names)


def multiplications(task: Task) -> float | None:
    """Of one sample's forward pass; None: the model cannot be asked."""
    try:
        return sum(_multiplications(task).values())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


def _multiplications(task: Task) -> Mapping[str, float]:
    """Of each layer, its parameters times the places at which a sample uses them."""
    # Nothing of this may show in a run: a model of its own, no dropout, no running statistics, no random numbers.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = task.model().eval()
        places: dict[nn.Module, float] = {}
        hooks = [each.register_forward_hook(partial(_count, places)) for each in model.modules()]
        inputs, _ = samples_to_learn(task).pick(torch.arange(1))
        model(inputs)
        for hook in hooks:
            hook.remove()
        work = {}
        for prefix, module in model.named_modules(remove_duplicate=True):
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    work[f"{prefix}.{name}".lstrip(".")] = parameter.numel() * places.get(module, 0.0)
    return work


def _count(places: dict[nn.Module, float], module: nn.Module, inputs: object, output: object) -> None:
    """Add up how many times a module uses each of its outputs' weights for one sample."""
    weight = next(module.parameters(recurse=False), None)
    if weight is not None and isinstance(output, Tensor) and weight.numel():
        rows = weight.shape[0] if weight.dim() else 1
        # An embedding has more rows than outputs: as a fraction it would be free, so each use counts once.
        places[module] = places.get(module, 0.0) + max(1.0, output.numel() / rows)


def _module(name: str) -> str:
    return name.rpartition(".")[0]


__all__ = ["FORWARD_SHARE", "LayerBucket", "layer_buckets", "multiplications", "sum_buckets", "work_shares"]
