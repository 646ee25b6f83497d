"""What a rule learns, apart from all systems questions: ResNet-18 on CIFAR-10, unequal workers one after the other.

    sh benchmarks/gpu.sh rules.py --processes 4 --kept rules.jsonl        # needs OWNPACE_DATA and a GPU

Nothing of the library's algorithms is used: each rule is stated once more, on flat tensors, with the arrival of a sum
at a given part of the next round. The recipe is one that people use: random crop and flip, label smoothing 0.1,
Nesterov momentum 0.9, weight decay 5e-4, gradients clipped at 2, a cosine after three epochs of warm-up.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ownpace.tasks.models import IMAGE_MODELS
from table import print_table

MOMENTUM, DECAY, CLIP, SMOOTHING = 0.9, 5e-4, 2.0, 0.1
WARMUP_EPOCHS = 3
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Rule:
    """How progress of the workers becomes one model."""

    name: str
    lr: float
    batches: tuple[int, ...] = (256, 128, 64, 64)
    steps: tuple[int, ...] = (2, 2, 2, 2)
    """Of each worker, in a round."""
    arrives: float = 1.0
    """After which part of the next round the sum of a round is there; 0: all wait for it."""
    momentum: str = "own"
    """own: each worker keeps its buffer; averaged: buffers are summed like progress, corrected for the steps since."""
    outer: float = 0.0
    """Nesterov momentum of the outer step; its rate is 1 − this, so that steps are as long in the end."""
    inner: float = MOMENTUM
    guess: float = 1.0
    """Of the progress under way, the part that is guessed from one's own; the rest is what all made before."""
    epochs: int = 16
    seed: int = 0

    @property
    def samples(self) -> int:
        """Of all workers in a round."""
        return sum(batch * steps for batch, steps in zip(self.batches, self.steps, strict=True))


class Data:
    """CIFAR-10 on the card, padded for random crops."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        files = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
        images, self.labels = self._read(files, device)
        self.images = functional.pad(images, (0, 0, 4, 4, 4, 4))
        self.test_images, self.test_labels = self._read([folder / "test_batch.bin"], device)
        self.mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1) * 255
        self.std = torch.tensor(STD, device=device).view(1, 3, 1, 1) * 255

    @staticmethod
    def _read(files: Sequence[Path], device: torch.device) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, 3073))
        images = rows[:, 1:].reshape(-1, 3, 32, 32).permute(0, 2, 3, 1).contiguous()
        return images.to(device), rows[:, 0].long().to(device)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Cropped and flipped at random."""
        size, device = len(chosen), chosen.device
        rows = torch.randint(0, 9, (size, 1), device=device) + torch.arange(32, device=device)
        columns = torch.randint(0, 9, (size, 1), device=device) + torch.arange(32, device=device)
        columns = torch.where(torch.rand(size, 1, device=device) < 0.5, columns, columns.flip(1))
        images = self.images[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
        return self.normal(images), self.labels[chosen]

    def normal(self, images: Tensor) -> Tensor:
        """As the model takes them: NCHW in shape, channels last in memory."""
        return (images.permute(0, 3, 1, 2).float() - self.mean) / self.std


class Net:
    """The model over one flat vector; gradients by one CUDA graph for each batch size."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.model = IMAGE_MODELS["resnet18"]((3, 32, 32), 10).to(device)
        parameters = list(self.model.parameters())
        size = sum(each.numel() for each in parameters)
        self.values, self.gradient = torch.empty(size, device=device), torch.zeros(size, device=device)
        start = 0
        for each in parameters:
            view = self._view(self.values, start, each)
            view.copy_(each.data)
            each.data, each.grad = view, self._view(self.gradient, start, each)
            start += each.numel()
        self.buffers = [each for each in self.model.buffers() if each.is_floating_point()]
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    @staticmethod
    def _view(flat: Tensor, start: int, like: Tensor) -> Tensor:
        piece = flat[start : start + like.numel()]
        if like.dim() != 4:
            return piece.view(like.shape)
        outputs, inputs, height, width = like.shape
        return piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)

    def compute(self, images: Tensor, labels: Tensor) -> None:
        """Leave the mean gradient in `gradient`."""
        if len(images) not in self._graphs:
            self._graphs[len(images)] = self._capture(images, labels)
        graph, inputs, targets = self._graphs[len(images)]
        inputs.copy_(images)
        targets.copy_(labels)
        graph.replay()

    def _capture(self, images: Tensor, labels: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        inputs, targets = images.clone(memory_format=torch.channels_last), labels.clone()
        kept = [each.clone() for each in self.buffers]

        def once() -> None:
            self.gradient.zero_()
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                output = self.model(inputs)
            functional.cross_entropy(output.float(), targets, label_smoothing=SMOOTHING).backward()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # which still makes the batch
        with torch.cuda.stream(stream):
            for _ in range(3):
                once()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once()
        for each, before in zip(self.buffers, kept, strict=True):
            each.copy_(before)
        return graph, inputs, targets

    @torch.no_grad()
    def accuracy(self, data: Data) -> float:
        """On the test set, with `values` and `buffers` as they are."""
        self.model.eval()
        right = 0
        for images, labels in zip(data.test_images.split(1000), data.test_labels.split(1000), strict=True):
            with torch.autocast("cuda", torch.bfloat16):
                right += int((self.model(data.normal(images)).argmax(1) == labels).sum())
        self.model.train()
        return right / len(data.test_labels)


class Worker:
    """Where one worker is, with its optimizer's buffer and its statistics of batch normalization."""

    def __init__(self, net: Net) -> None:
        self.values, self.buffer = net.values.clone(), torch.zeros_like(net.values)
        self.statistics = [each.clone() for each in net.buffers]

    def step(self, net: Net, images: Tensor, labels: Tensor, lr: float, momentum: float) -> None:
        """One step of SGD with Nesterov momentum."""
        gradient = self.gradient(net, images, labels)
        self.apply(gradient, lr, momentum)

    def gradient(self, net: Net, images: Tensor, labels: Tensor) -> Tensor:
        """Where this worker is."""
        net.values.copy_(self.values)
        for mine, theirs in zip(self.statistics, net.buffers, strict=True):
            theirs.copy_(mine)
        net.compute(images, labels)
        for mine, theirs in zip(self.statistics, net.buffers, strict=True):
            mine.copy_(theirs)
        return net.gradient

    def apply(self, gradient: Tensor, lr: float, momentum: float) -> None:
        """Clip, decay, and move."""
        gradient.mul_((CLIP / (gradient.norm() + 1e-6)).clamp(max=1.0)).add_(self.values, alpha=DECAY)
        self.buffer.mul_(momentum).add_(gradient)
        self.values.sub_(gradient.add_(self.buffer, alpha=momentum), alpha=lr)


def train(rule: Rule, folder: Path) -> dict[str, object]:
    """One run by a rule; what came of it."""
    began, device = time.perf_counter(), torch.device("cuda")
    torch.manual_seed(rule.seed)
    torch.backends.cudnn.benchmark = True
    data, net = Data(folder, device), Net(device)
    run = Run(rule, data, net)
    run.all_rounds()
    for index, theirs in enumerate(net.buffers):
        theirs.copy_(torch.stack([each.statistics[index] for each in run.workers]).mean(0))
    net.values.copy_(run.model)
    accuracy = net.accuracy(data)
    return {**asdict(rule), "accuracy": accuracy, "spread": run.spread, "seconds": time.perf_counter() - began}


class Run:
    """All rounds of one run."""

    def __init__(self, rule: Rule, data: Data, net: Net) -> None:
        self.rule, self.data, self.net = rule, data, net
        self.model = net.values.clone()
        self.workers = [Worker(net) for _ in rule.batches]
        self.weights = [b * s / rule.samples for b, s in zip(rule.batches, rule.steps, strict=True)]
        self.outer = torch.zeros_like(self.model)
        self.spread = 0.0
        self._order, self._at, self._done = torch.empty(0, dtype=torch.long, device="cuda"), 0, 0
        self._under_way: tuple[list[Tensor], list[Tensor]] | None = None  # progress and momentum of the last round
        self._last = torch.zeros_like(self.model)  # what the last sum brought

    def all_rounds(self) -> None:
        """To the end of the last epoch."""
        rounds = self.rule.epochs * 50_000 // self.rule.samples
        for _ in range(rounds):
            if self.rule.name == "sync":
                self._synchronous()
            else:
                self._round()
        if self._under_way is not None:
            self._take_in(self._progress_none(), [0] * len(self.workers))

    def _lr(self) -> float:
        epoch = self._done / 50_000
        if epoch < WARMUP_EPOCHS:
            return self.rule.lr * epoch / WARMUP_EPOCHS
        part = (epoch - WARMUP_EPOCHS) / (self.rule.epochs - WARMUP_EPOCHS)
        return self.rule.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))

    def _batch(self, size: int) -> tuple[Tensor, Tensor]:
        if self._at + size > len(self._order):
            self._order, self._at = torch.randperm(50_000, device="cuda"), 0
        self._at += size
        return self.data.batch(self._order[self._at - size : self._at])

    def _synchronous(self) -> None:
        total, lead = torch.zeros_like(self.model), self.workers[0]
        for worker, size, weight in zip(self.workers, self.rule.batches, self.weights, strict=True):
            worker.values.copy_(lead.values)
            for _ in range(self.rule.steps[0]):
                gradient = worker.gradient(self.net, *self._batch(size))
                total.add_(gradient, alpha=weight / self.rule.steps[0])
        lead.apply(total, self._lr(), self.rule.inner)
        self._done += self.rule.samples
        self.model.copy_(lead.values)

    def _round(self) -> None:
        lr, starts = self._lr(), [each.values.clone() for each in self.workers]
        before = [max(1, math.ceil(self.rule.arrives * steps)) for steps in self.rule.steps]
        if self._under_way is not None:
            self._steps(before, lr)
            since = [start - each.values for start, each in zip(starts, self.workers, strict=True)]
            self._take_in(since, before)
            # The round's progress goes on being counted from where the worker would have begun, had the sum been there.
            starts = [each.values + made for each, made in zip(self.workers, since, strict=True)]
            self._steps([steps - made for steps, made in zip(self.rule.steps, before, strict=True)], lr)
        else:
            self._steps(self.rule.steps, lr)
        self._done += self.rule.samples
        progress = [start - each.values for start, each in zip(starts, self.workers, strict=True)]
        self._under_way = progress, [each.buffer.clone() for each in self.workers]
        if self.rule.arrives == 0:
            self._take_in(self._progress_none(), [0] * len(self.workers))
        elif self.rule.guess < 1:
            for worker, own in zip(self.workers, progress, strict=True):
                worker.values.add_(own - self._last, alpha=1 - self.rule.guess)

    def _progress_none(self) -> list[Tensor]:
        return [torch.zeros_like(self.model) for _ in self.workers]

    def _steps(self, numbers: Sequence[int], lr: float) -> None:
        for worker, size, number in zip(self.workers, self.rule.batches, numbers, strict=True):
            for _ in range(number):
                worker.step(self.net, *self._batch(size), lr, self.rule.inner)

    def _take_in(self, since: Sequence[Tensor], steps_since: Sequence[int]) -> None:
        assert self._under_way is not None
        progress, buffers = self._under_way
        mean = sum((p * w for p, w in zip(progress, self.weights, strict=True)), torch.zeros_like(self.model))
        spread = math.sqrt(sum(w * float((p - mean).norm()) ** 2 for p, w in zip(progress, self.weights, strict=True)))
        self.spread = 0.9 * self.spread + 0.1 * spread / max(1e-12, float(mean.norm()))
        if self.rule.outer:
            self.outer.mul_(self.rule.outer).add_(mean)
            mean = (mean + self.rule.outer * self.outer) * (1 - self.rule.outer)
        self.model.sub_(mean)
        self._last = mean
        if self.rule.momentum == "averaged":
            mean_buffer = sum((b * w for b, w in zip(buffers, self.weights, strict=True)), torch.zeros_like(mean))
        for worker, made, number, buffer in zip(self.workers, since, steps_since, buffers, strict=True):
            worker.values.copy_(self.model - made)
            if self.rule.momentum == "averaged":
                worker.buffer.add_(mean_buffer - buffer, alpha=self.rule.inner**number)
        self._under_way = None


BY_STEPS = (128,) * 4, (4, 2, 1, 1)
ONE = (512, 256, 128, 128), (1,) * 4
RULES: list[Rule] = [
    Rule("sync", 0.8, *ONE),
    Rule("stride", 0.8),
    Rule("stride", 0.8, momentum="averaged"),
    Rule("stride", 0.8, arrives=0.0),
    Rule("stride", 0.8, arrives=0.0, momentum="averaged"),
    Rule("stride", 0.8, arrives=0.5),
    Rule("stride", 0.8, arrives=0.5, momentum="averaged"),
    Rule("stride", 0.4),
    Rule("stride", 0.4, momentum="averaged"),
    Rule("stride", 0.4, arrives=0.0),
    Rule("stride", 0.4, arrives=0.0, momentum="averaged"),
    Rule("stride", 0.8, *ONE, momentum="averaged"),
    Rule("stride", 0.8, *ONE),
    Rule("stride", 0.8, guess=0.5),
    Rule("stride", 0.8, guess=0.0),
    Rule("stride", 0.8, guess=0.5, momentum="averaged"),
    Rule("stride", 0.8, guess=0.0, momentum="averaged"),
    Rule("stride", 0.4, *BY_STEPS),
    Rule("stride", 0.4, *BY_STEPS, momentum="averaged"),
    Rule("stride", 0.8, outer=0.5),
    Rule("stride", 1.6, outer=0.5, inner=0.8),
    Rule("stride", 1.6, momentum="averaged"),
    Rule("stride", 0.4, batches=(128, 64, 32, 32), steps=(4,) * 4, momentum="averaged"),
    Rule("stride", 0.4, batches=(256, 128, 64, 64), steps=(4,) * 4, momentum="averaged"),
    Rule("sync", 0.8, *ONE, seed=1),
    Rule("stride", 0.8, seed=1),
    Rule("stride", 0.8, momentum="averaged", seed=1),
    Rule("stride", 0.8, arrives=0.0, seed=1),
    Rule("stride", 0.8, arrives=0.0, momentum="averaged", seed=1),
]


def main() -> None:
    """All rules that are not known yet, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--kept", type=Path, default=Path("rules.jsonl"))
    parser.add_argument("--epochs", type=int, default=16)
    options = parser.parse_args()
    folder = Path(os.environ["OWNPACE_DATA"]) / "cifar10" / "cifar-10-batches-bin"
    deadline = time.monotonic() + options.seconds
    context = multiprocessing.get_context("spawn")
    jobs = [(Rule(**{**asdict(rule), "epochs": options.epochs}), folder, deadline) for rule in RULES]
    found = []
    with context.Pool(options.processes) as pool, options.kept.open("a") as kept:
        for result in pool.imap_unordered(_job, jobs):
            if result is not None:
                found.append(result)
                print(json.dumps(result), file=kept, flush=True)
                print(result["name"], result, flush=True)
    head = ["rule", "lr", "batches", "steps", "arrives", "momentum", "accuracy"]
    keys = ["name", "lr", "batches", "steps", "arrives", "momentum", "accuracy"]
    print_table(head, [[str(each[key]) for key in keys] for each in found])


def _job(job: tuple[Rule, Path, float]) -> dict[str, object] | None:
    rule, folder, deadline = job
    return train(rule, folder) if time.monotonic() < deadline else None


if __name__ == "__main__":
    main()
