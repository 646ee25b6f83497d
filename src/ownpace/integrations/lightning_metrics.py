"""What Lightning's training steps have logged in an epoch, where a rank may have logged less than others, or nothing.

At the end of an epoch Lightning reduces each of its results over all ranks, and takes for granted that all have the
same ones, in the same order. Here a slow rank may get no batch at all. It then takes part with nothing: sums of zero
over no samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
    _Sync,
)
from torch import nn
from torchmetrics.utilities.data import dim_zero_cat

Told = dict[str, Any]
"""Of one result, by its key: all that a rank needs to have the same; numbers and strings alone."""
_PLAIN = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")


def told(results: _ResultCollection) -> Told:
    """What this rank has logged since the epoch began."""
    return {key: _described(result) for key, result in results.items() if not result.has_reset}


def _described(result: _ResultMetric) -> Told:
    meta, sync = result.meta, result.meta.sync
    number = [float(result.value)] if result.is_tensor else []
    if number and meta.is_mean_reduction:
        number.append(float(result.cumulated_batch_size))
    return {
        **{name: getattr(meta, name) for name in _PLAIN},
        "reduce_fx": meta.reduce_fx.__name__,
        "metric_attribute": meta.metric_attribute,
        "sync": sync.should,
        "rank_zero_only": sync.rank_zero_only,
        "number": number,
        # Without any update on some rank, torchmetrics can put together sums, and lists that are joined.
        "needs_all": not result.is_tensor and not _may_be_empty(result.value),
    }


def _may_be_empty(metric: Any) -> bool:
    return all(
        how is dim_zero_cat or not isinstance(getattr(metric, name), list) for name, how in metric._reductions.items()
    )


def complete(
    results: _ResultCollection, of_ranks: Sequence[Told], model: nn.Module, reduce: Callable[..., Any]
) -> None:
    """Let this rank have all results that any rank has told of, in the same order as all others."""
    everything: Told = {}
    for each in of_ranks:
        everything = {**each, **everything}
    # By name: each rank has come to them in an order of its own.
    for key in sorted(everything):
        is_everywhere = all(key in each for each in of_ranks)
        if key not in results:
            results[key] = _made(everything[key], model, reduce)
        result = results.pop(key)
        results[key] = result
        if not result.is_tensor:
            result.value._to_sync = is_everywhere or not everything[key]["needs_all"]
        if result.has_reset or not result.update_called:
            _take_nothing(result, everything[key])


def _made(told_of: Mapping[str, Any], model: nn.Module, reduce: Callable[..., Any]) -> _ResultMetric:
    plain = {name: told_of[name] for name in (*_PLAIN, "metric_attribute")}
    meta = _Metadata(**plain, reduce_fx=getattr(torch, told_of["reduce_fx"]))
    meta.sync = _Sync(fn=reduce, _should=told_of["sync"], rank_zero_only=told_of["rank_zero_only"])
    made = _ResultMetric(meta, is_tensor=bool(told_of["number"]))
    if not made.is_tensor:
        made.value = model.get_submodule(told_of["metric_attribute"])
    made.to(next(model.parameters()).device)
    made.has_reset = made.stands_in = True
    return made


def forget(results: _ResultCollection) -> None:
    """Another epoch begins: what this rank had only because others did is made anew, by its own steps if it can be."""
    for key in [key for key, result in results.items() if getattr(result, "stands_in", False)]:
        del results[key]


def _take_nothing(result: _ResultMetric, told_of: Mapping[str, Any]) -> None:
    """Of a value that is not reduced, another rank's: none at all would end callbacks that go by it."""
    result.has_reset, result._computed, result._update_count = False, None, 1
    if result.is_tensor and not result.meta.sync.should:
        value, *batch_size = told_of["number"]
        result.value = torch.full_like(result.value, value)
        if batch_size:
            result.cumulated_batch_size = torch.full_like(result.cumulated_batch_size, int(batch_size[0]))
