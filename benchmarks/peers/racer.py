"""One worker of one system in the race to an accuracy: `racer.py SETTING.json RANK`, started by bench_peers.py.

Each system has an environment of its own, so this imports nothing but torch, NumPy, and the one system that it is told
to race. All train the same perceptron on the same pictures with the same momentum and a cosine over the same number of
samples, and a batch takes as long as the setting says.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

MOMENTUM = 0.9


def pictures(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """One part of a set in the format of MNIST, as numbers of mean 0."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        images = torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784).copy())
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64))
    return (images.float() / 255 - 0.1307) / 0.3081, labels


class Racer:
    """What every system's loop is made of: data, model, pace and the record of how good the model was when."""

    def __init__(self, setting: dict[str, Any], rank: int) -> None:
        self.setting, self.rank, self.world = setting, rank, len(setting["paces"])
        torch.manual_seed(setting["seed"])
        torch.set_num_threads(1)
        folder = Path(os.environ["OWNPACE_DATA"]) / setting["data"]
        self.inputs, self.targets = pictures(folder, "train")
        self.test = pictures(folder, "t10k")
        self.model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        self.share = setting["paces"][rank] / sum(setting["paces"])
        self.started = 0.0
        self._snapshots: list[tuple[float, dict[str, Tensor]]] = []
        self._samples = 0
        self._clock = 0.0

    def optimizer(self, parameters: Any = None) -> torch.optim.SGD:
        """As everybody has it."""
        parameters = self.model.parameters() if parameters is None else parameters
        return torch.optim.SGD(parameters, lr=self.setting["lr"], momentum=MOMENTUM)

    def batch(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in an order of this rank's own, for ever."""
        generator = torch.Generator().manual_seed(1000 * self.setting["seed"] + self.rank)
        while True:
            order = torch.randperm(len(self.inputs), generator=generator)
            for chosen in order.split(size):
                if len(chosen) == size:
                    yield self.inputs[chosen], self.targets[chosen]

    def factor(self, part: float) -> float:
        """Of the learning rate, when this part of the run is over."""
        return 0.5 * (1 + math.cos(math.pi * min(1.0, part)))

    def learn(self, model: nn.Module, inputs: Tensor, targets: Tensor, weight: float = 1.0) -> None:
        """The gradient of a batch, in the time that it takes on such a machine."""
        if not self.started:
            self.started = self._clock = time.monotonic()
        begun = time.monotonic()
        loss = functional.cross_entropy(model(inputs), targets) * weight
        until = begun + len(inputs) / self._pace(begun - self.started)
        # Before the backward pass, in which some systems begin to send: a machine that is slow is slow before it, too.
        time.sleep(max(0.0, until - time.monotonic()))
        loss.backward()
        self._samples += len(inputs)

    def _pace(self, t: float) -> float:
        pace = float(self.setting["paces"][self.rank])
        for start, end, factor in self.setting["slowdowns"][self.rank]:
            if start <= t < end:
                return pace / float(factor)
        return pace

    def look(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Rank 0 keeps the model now and then; it is judged after the run."""
        now = time.monotonic()
        if self.rank == 0 and now >= self._clock:
            self._clock = now + self.setting["every_s"]
            kept = {name: value.detach().clone() for name, value in state().items()}
            self._snapshots.append((now - self.started, kept))

    def finish(self, state: dict[str, Tensor]) -> None:
        """Judge what was kept, and write it down."""
        seconds = time.monotonic() - self.started
        self._snapshots.append((seconds, {name: value.detach().clone() for name, value in state.items()}))
        curve = []
        for t, kept in self._snapshots if self.rank == 0 else []:
            self.model.load_state_dict(kept)
            with torch.no_grad():
                right = (self.model(self.test[0]).argmax(1) == self.test[1]).float().mean()
            curve.append((t, float(right)))
        found = {"seconds": seconds, "samples": self._samples, "curve": curve}
        path = Path(self.setting["folder"]) / f"{self.rank}.json"
        path.with_suffix(".part").write_text(json.dumps(found))
        path.with_suffix(".part").rename(path)


def ddp(racer: Racer, *, split: bool) -> None:
    """DistributedDataParallel, with equal batches or with batches by pace, weighted as they must be."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    module = nn.parallel.DistributedDataParallel(racer.model)
    whole = racer.setting["batch"] * racer.world
    size = round(whole * racer.share) if split else racer.setting["batch"]
    weight = size * racer.world / whole
    optimizer, batches = racer.optimizer(), racer.batch(size)
    steps = racer.setting["samples"] // whole
    dist.barrier()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = racer.setting["lr"] * racer.factor(step / steps)
        optimizer.zero_grad()
        racer.learn(module, *next(batches), weight)
        optimizer.step()
        racer.look(racer.model.state_dict)
    racer.finish(racer.model.state_dict())
    dist.barrier()


def torchft(racer: Racer, *, local: bool) -> None:
    """DDP or DiLoCo of torchft; DiLoCo with local steps by pace, which its user has to find by hand."""
    import torch.distributed as dist
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    model, inner = racer.model, racer.optimizer()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=racer.world,
        use_async_quorum=not local,
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=racer.setting["lighthouse"],
        replica_id=f"replica_{racer.rank}",
        hostname="127.0.0.1",
    )
    if local:
        _diloco(racer, manager, inner, DiLoCo)
    else:
        _torchft_ddp(racer, DistributedDataParallel(manager, model), Optimizer(manager, inner), inner)
    racer.finish(model.state_dict())
    manager.shutdown(wait=False)


def _torchft_ddp(racer: Racer, module: nn.Module, optimizer: Any, inner: torch.optim.Optimizer) -> None:
    batches, size = racer.batch(racer.setting["batch"]), racer.setting["batch"]
    steps = racer.setting["samples"] // (size * racer.world)
    for step in range(steps):
        for group in inner.param_groups:
            group["lr"] = racer.setting["lr"] * racer.factor(step / steps)
        optimizer.zero_grad()
        racer.learn(module, *next(batches))
        optimizer.step()
        racer.look(racer.model.state_dict)


def _diloco(racer: Racer, manager: Any, inner: torch.optim.Optimizer, wrapper: Any) -> None:
    own = racer.setting["options"]
    outer = torch.optim.SGD(
        racer.model.parameters(),
        lr=own["outer_lr"],
        momentum=own["outer_momentum"],
        nesterov=own["outer_momentum"] > 0,
    )
    paces = racer.setting["paces"]
    steps = [max(1, round(own["steps"] * pace / max(paces))) for pace in paces]
    every = steps[racer.rank]
    rounds = round(racer.setting["samples"] / racer.setting["batch"] / sum(steps))  # the same number on all
    batches = racer.batch(racer.setting["batch"])
    with wrapper(manager, [racer.model], inner, outer, sync_every=every, pin_memory=False):
        for round_ in range(rounds):
            for step in range(every):
                for group in inner.param_groups:
                    group["lr"] = racer.setting["lr"] * racer.factor((round_ + step / every) / rounds)
                inner.zero_grad()
                racer.learn(racer.model, *next(batches))
                inner.step()
            racer.look(racer.model.state_dict)  # after a round: in it, the model is this worker's own


def hivemind(racer: Racer) -> None:
    """Its optimizer with local updates, in which it is fastest."""
    import hivemind as library

    path = Path(racer.setting["folder"]) / "peer"
    while racer.rank and not path.exists():
        time.sleep(0.05)
    dht = library.DHT(
        host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=path.read_text().split() if racer.rank else [], start=True
    )
    if not racer.rank:
        path.with_suffix(".part").write_text(str(dht.get_visible_maddrs()[0]))
        path.with_suffix(".part").rename(path)
    own, size = racer.setting["options"], racer.setting["batch"]
    epochs = racer.setting["samples"] / own["target"]
    optimizer = library.Optimizer(
        dht=dht,
        run_id="race",
        batch_size_per_step=size,
        target_batch_size=own["target"],
        params=racer.model.parameters(),
        optimizer=racer.optimizer,
        scheduler=lambda inner: torch.optim.lr_scheduler.LambdaLR(inner, lambda epoch: racer.factor(epoch / epochs)),
        use_local_updates=True,
        matchmaking_time=own["matchmaking"],
        averaging_timeout=20.0,
    )
    batches = racer.batch(size)
    for _ in range(round(racer.setting["samples"] * racer.share / size)):
        racer.learn(racer.model, *next(batches))
        optimizer.step()
        optimizer.zero_grad()
        racer.look(racer.model.state_dict)
    racer.finish(racer.model.state_dict())
    time.sleep(1)  # others may still ask this one for its state
    optimizer.shutdown()
    dht.shutdown()


def ours(racer: Racer, algorithm: str) -> None:
    """ownpace, in a script's own loop."""
    from torch.optim.lr_scheduler import LambdaLR
    from torch.utils.data import TensorDataset

    import ownpace

    size = racer.setting["batch"]
    steps = racer.setting["samples"] / (size * racer.world)
    optimizer = racer.optimizer()
    scheduler = LambdaLR(optimizer, lambda step: racer.factor(step / steps))
    with ownpace.join(algorithm, quiet=True, **racer.setting["options"]) as fleet:
        model, optimizer = fleet.wrap(racer.model, optimizer, scheduler=scheduler)
        data = TensorDataset(racer.inputs, racer.targets)
        for inputs, targets in fleet.batches(data, size, samples=racer.setting["samples"]):
            optimizer.zero_grad()
            racer.learn(model, inputs, targets)
            optimizer.step()
            racer.look(model.state_dict)
    racer.finish(model.state_dict())


SYSTEMS: dict[str, Callable[[Racer], None]] = {
    "ddp": lambda racer: ddp(racer, split=False),
    "ddp-split": lambda racer: ddp(racer, split=True),
    "torchft-ddp": lambda racer: torchft(racer, local=False),
    "torchft-diloco": lambda racer: torchft(racer, local=True),
    "hivemind": hivemind,
}


def main() -> None:
    """Race one system as one of its workers."""
    setting = json.loads(Path(sys.argv[1]).read_text())
    racer = Racer(setting, int(sys.argv[2]))
    name = setting["system"]
    if name.startswith("ownpace-"):
        ours(racer, name.removeprefix("ownpace-"))
    else:
        SYSTEMS[name](racer)


if __name__ == "__main__":
    main()
