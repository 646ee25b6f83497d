"""Every kind of data on two ranks: `torchrun … -m tests.process.scenarios_data NAME FOLDER`."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.process.small_net import RANK, Numbers, flat, make_net, mean_loss, sgd
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler, get_worker_info

import ownpace

Sample = tuple[Tensor, Tensor, int]


class NumbersStream(IterableDataset[Sample]):
    """The same samples as a stream; several workers divide them."""

    def __init__(self, size: int) -> None:
        self.numbers = Numbers(size)

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        places = range(len(self.numbers)) if info is None else range(info.id, len(self.numbers), info.num_workers)
        return (self.numbers[place] for place in places)


def as_dict(samples: list[Sample]) -> dict[str, Any]:
    x, y, indices = zip(*samples, strict=True)
    return {"x": torch.stack(x), "y": torch.stack(y), "indices": list(indices)}


def learn(algorithm: str, *loops: tuple[Any, dict[str, Any]]) -> dict[str, Any]:
    """Goes through batches of each of some data, one loop after the other; returns the samples of each loop."""
    net = make_net()
    optimizer = sgd(net)
    seen: list[list[int]] = []
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(net, optimizer)
        for data, asked in loops:
            seen.append([])
            for batch in fleet.batches(data, **asked):
                x, y, indices = (batch["x"], batch["y"], batch["indices"]) if isinstance(batch, dict) else batch
                seen[-1] += [int(index) for index in indices]
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
    return {"seen": seen, "weights": flat(net).tolist(), "summary": fleet.summary.as_dict()}


def get_batch(batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    indices = torch.randint(1_000_000, (batch_size,))
    return torch.randn(batch_size, 6), torch.randint(3, (batch_size,)), indices


def a_loader() -> DataLoader[Sample]:
    return DataLoader(Numbers(61), 8, shuffle=True, num_workers=2, collate_fn=as_dict, persistent_workers=True)


def every_kind() -> dict[str, Any]:
    torch.manual_seed(0)  # as scripts do, on all ranks
    weighted = WeightedRandomSampler([0.0] * 30 + [1.0] * 31, 61)
    asked = {"batch_size": 8}
    return {
        "loader": learn("pace", (a_loader(), {"epochs": 2})),
        "weighted": learn("sync", (Numbers(61), {**asked, "sampler": weighted, "epochs": 2})),
        "stream": learn("pace", (NumbersStream(61), {**asked, "epochs": 2})),
        "stream, with workers": learn("async", (NumbersStream(61), {**asked, "num_workers": 2})),
        "function": learn("sync", (get_batch, {**asked, "samples": 120})),
        "in order": learn("sync", (Numbers(61), {**asked, "shuffle": False})),
        "whole batches": learn("sync", (Numbers(61), {**asked, "drop_last": True})),
    }


def again() -> dict[str, Any]:
    return {"several": several(), "shapes": shapes()}


def several() -> dict[str, Any]:
    """One object, iterated three times: whole, left by one rank, whole again."""
    net = make_net()
    optimizer = sgd(net)
    seen: list[list[int]] = []
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)
        batches = fleet.batches(a_loader())
        lengths = [len(batches)]
        for number in range(3):
            seen.append([])
            for batch in itertools.islice(batches, 2 if number == 1 and RANK == 1 else None):
                seen[-1] += batch["indices"]
                mean_loss(net, batch["x"], batch["y"]).backward()
                optimizer.step()
                optimizer.zero_grad()
    return {"seen": seen, "weights": flat(net).tolist(), "lengths": lengths}


def shapes() -> dict[str, Any]:
    """Loops as scripts write them."""
    net = make_net()
    optimizer = sgd(net)
    counts = []
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)

        def step(x: Tensor, y: Tensor) -> int:
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            return 1

        batches = fleet.batches(Numbers(64), 8)
        counts.append(sum(step(x, y) for _, (x, y, _) in enumerate(batches)))
        counts.append(sum(step(x, y) for (x, y, _), _ in zip(batches, itertools.count(), strict=False)))
        left = iter(batches)
        while (batch := next(left, None)) is not None:
            step(batch[0], batch[1])
        counts.append(len(batches))
    return {"counts": counts, "weights": flat(net).tolist()}


def different_data() -> dict[str, Any]:
    """Rank 1 differs in one thing at a time; at last in nothing."""
    other = RANK == 1

    def attempt(data: Any, *, then: Any = None, **asked: Any) -> str:
        loops = [(data, {"batch_size": 8, **asked})]
        try:
            learn("sync", *loops, *([] if then is None else [(then, {"batch_size": 8})]))
        except ownpace.InputError as error:
            return str(error)
        return ""

    shifted = [(x, y + other, index) for x, y, index in Numbers(16)]  # type: ignore[attr-defined]
    return {
        "contents": attempt(shifted),
        "stream": attempt(iter(shifted)),
        "sampler": attempt(Numbers(16), sampler=[*range(16)][:: -1 if other else 1]),
        "batch size": attempt(Numbers(16), batch_size=8 + other),
        "limit": attempt(Numbers(16), samples=8 + other),
        "second": attempt(Numbers(16), then=Numbers(16 + other)),
        "nothing": attempt(Numbers(16), then=Numbers(24)),
    }


class Chosen(IterableDataset[Sample]):
    """Some of 60 samples, as a stream."""

    def __init__(self, *places: int) -> None:
        self.places = places

    def __iter__(self) -> Iterator[Sample]:
        return map(Numbers(60).__getitem__, self.places)


def longer_stream() -> str:
    """Rank 1's stream goes on for longer."""
    return misread(Chosen(*range(40 + 20 * RANK)))


def other_stream() -> str:
    """Rank 1's stream is another one from its 31st item on."""
    return misread(Chosen(*range(30), *sorted(range(30, 60), reverse=RANK == 1)))


def misread(stream: Chosen) -> str:
    """The error that a loop over this ends with."""
    try:
        learn("sync", (stream, {"batch_size": 8, "epochs": 2}))
    except ownpace.OwnpaceError as error:
        return str(error)
    return ""


def main() -> None:
    scenario, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    # With loading ahead, sizes lag behind what was asked for: on a busy machine an update may have a few samples more.
    warnings.filterwarnings("ignore", message="ownpace: an update had")
    seen = globals()[scenario]()
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
