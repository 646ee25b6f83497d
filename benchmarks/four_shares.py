"""One GPU cut into four unequal ones by CUDA MPS: how fast each way trains there, and how soon it is how good.

    sh benchmarks/gpu.sh four_shares.py rates       # samples/s and updates/s, beside what the four do alone
    sh benchmarks/gpu.sh four_shares.py accuracy    # ResNet-18 on CIFAR-10: accuracy over time; needs OWNPACE_DATA
    sh benchmarks/gpu.sh four_shares.py accuracy --recipe plain     # without what people use to learn better
    sh benchmarks/gpu.sh four_shares.py accuracy --runs balanced:0.8:20:1 ddp-split:1.2:16:0    # these runs alone

Every result is kept as a line of JSON as soon as it is there, and a second start with the same file makes the runs that
are missing.

Every way runs in four processes of its own, with gloo, since NCCL refuses two ranks on one card. All ways get the same
model, data on the card, bfloat16 and channels-last pictures; scripts with a fixed batch also get cuDNN's autotuning.
Snapshots are taken at the same samples in all ways and judged after the run. Rates of ours are given twice: over the
whole window, in which batch sizes are found and graphs recorded, and over what follows its first seconds; scripts have
warmed up before theirs begins.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import ownpace
from ownpace.core.contract.events import Evaluation, Update
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.schedule import Schedule
from ownpace.core.learning.task import Task
from ownpace.run import execute
from ownpace.tasks import Cifar10
from ownpace.tasks.byte_images import ByteImages, CroppedImages
from ownpace.tasks.models import IMAGE_MODELS
from shares import is_rank, run_ranks, take_share
from table import print_table

MOMENTUM, DECAY = 0.9, 5e-4
RECIPES: dict[str, dict[str, Any]] = {
    # Of the task: how pictures are changed; of the run: the rest.
    "plain": {"task": {}, "run": {}, "warmup": 1.0},
    "usual": {
        "task": {"crop": 4, "flip": True, "label_smoothing": 0.1},
        "run": {"nesterov": True, "clip_norm": 2.0},
        "warmup": 3.0,
    },
}
"""What is given for accuracy: by name, options of the task and of the run, and epochs of warm-up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["rates", "accuracy"])
    parser.add_argument("--shares", default="40,20,10,10", help="percent of the GPU for each process")
    parser.add_argument(
        "--ways",
        default="ddp,ddp-split,sync,balanced,abs,pace",
        help="or with parameters and settings of their own, as in pace+predict=own@batch_size=350@on_failure=stop",
    )
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--micro", type=int, default=None, help="largest micro-batch of abs and pace")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each way, for rates")
    parser.add_argument("--after", type=float, default=4.0, help="of these, the seconds before the second rate begins")
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="usual")
    parser.add_argument("--lrs", default="0.4,0.8,1.2,1.6")
    parser.add_argument("--lrs-of", action="append", default=[], help="others for one way, as in abs=0.02,0.05")
    parser.add_argument("--epochs", default="8,12,16,20", help="lengths, each with a schedule of its own")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--runs", nargs="+", default=[], help="instead of all these, in order: way:lr:epochs:seed")
    parser.add_argument("--snapshots", type=int, default=25, help="of each run, judged after it")
    parser.add_argument("--targets", default="0.88,0.9,0.91,0.92")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--graphs", action="store_true", help="CUDA graphs for our ways")
    parser.add_argument("--patience", type=float, default=500.0, help="seconds after which all is given up")
    parser.add_argument("--tune", action="store_true", help="cuDNN's autotuning for our ways, too")
    parser.add_argument("--json", type=Path, default=Path("four_shares.jsonl"), help="results, and where to go on")
    parser.add_argument("--jobs", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if is_rank():
        run_rank(options)
        return
    done = [identity(job) for job in kept(options.json)]
    jobs = rates_jobs(options) if options.what == "rates" else accuracy_jobs(options)
    # Always first: how batches are split follows from what the processes do alone, today.
    alone = {"way": "plain", "seconds": 3.0, "lr": 0.05}
    measure(options, [alone, *(job for job in jobs if identity(job) not in done)])
    show = show_rates if options.what == "rates" else show_accuracy
    show(options, kept(options.json))


def kept(path: Path) -> list[dict[str, Any]]:
    """What was found so far, now or before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def identity(job: dict[str, Any]) -> tuple[object, ...]:
    """What a job and its result have in common."""
    return tuple(job.get(key) for key in ("way", "lr", "epochs", "seed"))


def rates_jobs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for way in options.ways.split(","):
        yield {"way": way, "seconds": options.seconds, "lr": 0.05}


def accuracy_jobs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for run in options.runs:
        way, lr, epochs, seed = run.split(":")
        yield {"way": way, "lr": float(lr), "epochs": float(epochs), "seed": int(seed)}
    if options.runs:
        return
    own = dict(text.split("=", 1) for text in options.lrs_of)
    for seed in options.seeds.split(","):
        for epochs in options.epochs.split(","):
            for way in options.ways.split(","):
                for lr in own.get(way, options.lrs).split(","):
                    yield {"way": way, "lr": float(lr), "epochs": float(epochs), "seed": int(seed)}


def measure(options: argparse.Namespace, jobs: list[dict[str, Any]]) -> None:
    """Do these one after the other, in the same processes, one for each share."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "jobs.json"
        listed.write_text(json.dumps(jobs))
        arguments = [*sys.argv[1:], "--jobs", str(listed)]
        count = len(options.shares.split(","))
        run_ranks(__file__, arguments, count, threads=2, patience_s=options.patience)


def run_rank(options: argparse.Namespace) -> None:
    rank = int(os.environ["RANK"])
    take_share(options.shares)
    dist.init_process_group("gloo")
    changed = RECIPES[options.recipe]["task"]
    task: Task = Noise(options.model) if options.what == "rates" else Cifar10(model_name=options.model, **changed)
    speeds: list[float] = []
    for job in json.loads(options.jobs.read_text()):
        started = time.perf_counter()
        theirs = job["way"].partition("@")[0] in ("plain", "ddp", "ddp-split")
        torch.backends.cudnn.benchmark = theirs or options.tune
        try:
            result = (Script if theirs else Ours)(options, job, task, speeds).run()
        except ownpace.OwnpaceError as error:
            result = {"error": str(error)}
        speeds = speeds or result["rates"]  # of the first: what each does alone
        if rank == 0:
            brief = {key: value for key, value in result.items() if key not in ("curve", "busy")}
            print(f"{time.perf_counter() - started:5.1f} s  {job}  {brief}", flush=True)
            with options.json.open("a") as sink:
                sink.write(json.dumps({**job, **result}) + "\n")
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
        dist.barrier()
    os._exit(0)  # gloo's threads sometimes trip over a Python that is being taken down


def setting(text: str) -> tuple[str, Any]:
    """A field of a run's description, as in batch_size=350."""
    name, _, value = text.partition("=")
    return name, int(value) if value.isdecimal() else value


class Way:
    """One way of training, as one rank sees it."""

    def __init__(self, options: argparse.Namespace, job: dict[str, Any], task: Task, speeds: list[float]) -> None:
        self.options, self.job, self.task, self.speeds = options, job, task, speeds
        self.name, *own = job["way"].split("@")
        self.settings = {"batch_size": options.batch, **dict(map(setting, own))}
        self.batch = int(self.settings["batch_size"])
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device(options.device)
        self.samples: int | None = None
        # Rates are of what all have in common: a batch's gradient, its sum and a step.
        self.recipe = RECIPES[options.recipe if "epochs" in job else "plain"]
        if "epochs" in job:
            self.samples = int(job["epochs"] * len(task.train_samples()))
            self.eval_every = self.samples // options.snapshots
            self.warmup = int(self.recipe["warmup"] * len(task.train_samples()))
        self.seed = job.get("seed", 0)

    def run(self) -> dict[str, Any]:
        raise NotImplementedError


class Ours(Way):
    """A complete run of ours."""

    def run(self) -> dict[str, Any]:
        job, options = self.job, self.options
        name, *own = self.name.split("+")
        events: list[Any] = []
        config = ownpace.Config(
            algorithm=name,
            parameters=dict(text.split("=", 1) for text in own),
            task=self.task,
            engine="process",
            fleet=f"x{self.world}",
            micro_batch=options.micro if name in ("abs", "pace", "acco") else None,
            samples=self.samples,
            seconds=job.get("seconds"),
            lr=job["lr"],
            momentum=MOMENTUM,
            weight_decay=DECAY,
            schedule="constant" if self.samples is None else "cosine",
            warmup_samples=0 if self.samples is None else self.warmup,
            eval_every=10**12 if self.samples is None else self.eval_every,
            evaluate="after",
            seed=self.seed,
            device=str(self.device),
            precision="bfloat16" if self.device.type == "cuda" else "float32",
            cuda_graphs=options.graphs,
            detail=self.samples is None,  # rates are made of updates
            **self.settings,
            **self.recipe["run"],
        )
        result = execute(config, on_event=events.append)
        summary = result.summary
        curve = [(e.t, e.samples, e.accuracy) for e in events if isinstance(e, Evaluation)]
        return {
            "samples_per_s": summary.samples_per_s,
            "later_samples_per_s": rate_after(options.after, events),
            "updates_per_s": summary.updates / summary.seconds if summary.seconds else 0.0,
            "seconds": summary.seconds,
            "share_of_limit": summary.share_of_limit,
            "busy": summary.busy,
            "reason": summary.reason,
            "accuracy": summary.accuracy,
            "curve": curve,
        }


def rate_after(start_s: float, events: list[Any]) -> float | None:
    """Samples per second of what was updated later than this; None: of a run without a record of its updates."""
    made = [(event.t, event.total_samples) for event in events if isinstance(event, Update) and event.t >= start_s]
    (begin, before), (end, after) = min(made, default=(0.0, 0)), max(made, default=(0.0, 0))
    return (after - before) / (end - begin) if end > begin else None


class Script(Way):
    """The loop that anybody would write, alone or with DistributedDataParallel."""

    def run(self) -> dict[str, Any]:
        torch.manual_seed(0)
        self.train = self.task.train_samples().to(self.device)
        model = self.task.model().to(self.device)
        if self.device.type == "cuda":
            model = model.to(memory_format=torch.channels_last)
        batch, weight = self.batch, 1.0
        if self.name == "ddp-split":
            speeds = self.speeds
            whole = self.world * self.batch
            batch = max(8, round(whole * speeds[self.rank] / sum(speeds) / 8) * 8)
            weight = batch * self.world / whole
        module = model if self.name == "plain" else DistributedDataParallel(model)
        nesterov = self.recipe["run"].get("nesterov", False)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=self.job["lr"], momentum=MOMENTUM, weight_decay=DECAY, nesterov=nesterov
        )
        self.draws = torch.Generator().manual_seed(self.seed + 1000 * self.rank)
        state = self._keep(model)
        for _ in range(3):  # kernels are chosen, memory is taken, buckets are made
            self._backward(module, torch.arange(batch), 0.0)
            optimizer.zero_grad()
        model.load_state_dict(state)
        steps, seconds, snapshots = self._loop(module, model, optimizer, batch, weight)
        mine = torch.tensor([steps * batch / seconds], dtype=torch.float64)
        rates = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(rates, mine)
        result: dict[str, Any] = {
            "rates": [float(rate) for rate in rates],
            "samples_per_s": float(sum(rates)),
            "updates_per_s": steps / seconds,
            "seconds": seconds,
        }
        if self.rank == 0 and snapshots:
            result["curve"] = [(t, done, self._judge(model, kept)) for t, done, kept in snapshots]
            result["accuracy"] = result["curve"][-1][2]
        return result

    def _loop(
        self, module: torch.nn.Module, model: torch.nn.Module, optimizer: Any, batch: int, weight: float
    ) -> tuple[int, float, list[Any]]:
        order = Permutations(len(self.train), self.seed, 0)
        schedule = Schedule(shape="cosine", warmup_samples=self.warmup) if self.samples is not None else Schedule()
        sizes = torch.tensor([batch], dtype=torch.int64)
        everybody = [torch.zeros_like(sizes) for _ in range(self.world)]
        dist.all_gather(everybody, sizes)
        before = sum(int(size) for size in everybody[: self.rank])
        whole = sum(int(size) for size in everybody)
        snapshots: list[Any] = []
        done, steps, next_mark = 0, 0, 0.0
        start = self._now()
        while (done < self.samples) if self.samples is not None else not self._over(start, steps):
            if self.samples is not None:
                for group in optimizer.param_groups:
                    group["lr"] = self.job["lr"] * schedule.factor(done, self.samples)
                if self.rank == 0 and done >= next_mark:
                    next_mark = (done // self.eval_every + 1) * self.eval_every
                    snapshots.append((time.perf_counter() - start, done, self._keep(model)))
            self._backward(module, order.indices(done + before, batch), weight)
            if "clip_norm" in self.recipe["run"]:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.recipe["run"]["clip_norm"])
            optimizer.step()
            optimizer.zero_grad()
            done += whole
            steps += 1
        seconds = (self._now() if self.name != "plain" else time.perf_counter()) - start
        if self.rank == 0 and self.samples is not None:
            snapshots.append((seconds, done, self._keep(model)))
        return steps, seconds, snapshots

    def _over(self, start: float, steps: int) -> bool:
        """Whether the time is up; looked at by rank 0 now and then, since all must make as many steps."""
        if steps == 0 or steps % 10:
            return False
        if self.name == "plain":
            torch.cuda.synchronize() if self.device.type == "cuda" else None
            return time.perf_counter() - start > self.job["seconds"]
        over = torch.tensor([time.perf_counter() - start > self.job["seconds"]], dtype=torch.int32)
        dist.broadcast(over, 0)
        return bool(over)

    def _backward(self, module: torch.nn.Module, indices: torch.Tensor, weight: float) -> None:
        if isinstance(self.train, CroppedImages):
            randoms = torch.randint(2**31, (len(indices),), generator=self.draws)
            inputs, targets = self.train.pick_augmented(indices, randoms)
        else:
            inputs, targets = self.train.pick(indices)
        smoothing = self.recipe["task"].get("label_smoothing", 0.0)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = functional.cross_entropy(module(inputs), targets, label_smoothing=smoothing)
        (loss * weight).backward()

    def _keep(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}

    def _judge(self, model: torch.nn.Module, kept: dict[str, torch.Tensor]) -> float | None:
        model.load_state_dict(kept)
        return self.task.score(model, self.task.test_samples().to(self.device)).accuracy

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if self.world > 1:
            dist.barrier()
        return time.perf_counter()


def show_rates(options: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    by_way = {job["way"]: job for job in found if "error" not in job}
    limit, ddp = by_way["plain"]["samples_per_s"], by_way.get("ddp", {}).get("samples_per_s")
    rows = []
    for way, job in by_way.items():
        rate = job["samples_per_s"]
        later = job.get("later_samples_per_s")
        rows.append(
            (
                way,
                f"{rate:,.0f}",
                f"{job['updates_per_s']:.1f}",
                f"{rate / limit:.3f}",
                f"{later / limit:.3f}" if later else "",
                f"{rate / ddp:.2f}" if ddp else "",
            )
        )
    heads = ("way", "samples/s", "updates/s", "of the sum", f"after {options.after:g} s", "of DDP")
    print_table(heads, rows)


def show_accuracy(options: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    targets = [float(target) for target in options.targets.split(",")]
    rows = []
    for job in found:
        if "curve" not in job:
            continue
        times = [
            next((t for t, _, accuracy in job["curve"] if accuracy and accuracy >= goal), None) for goal in targets
        ]
        rows.append(
            (
                job["way"],
                f"{job['lr']:g}",
                f"{job['epochs']:g}",
                str(job["seed"]),
                f"{job['samples_per_s']:,.0f}",
                f"{job['updates_per_s']:.1f}",
                f"{job['accuracy']:.4f}" if job["accuracy"] else "",
                *("–" if t is None else f"{t:.1f}" for t in times),
            )
        )
    names = [f"s to {100 * target:g} %" for target in targets]
    print_table(("way", "lr", "epochs", "seed", "samples/s", "updates/s", "accuracy", *names), rows)


class Noise(Task):
    """Random pictures: what matters for rates is how long they take."""

    def __init__(self, model_name: str = "resnet18") -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (20_000, 3, 32, 32), generator=generator, dtype=torch.uint8)
        scale = torch.tensor([64.0] * 3).view(3, 1, 1)
        self._model_name = model_name
        self._samples = ByteImages(images, torch.randint(10, (20_000,), generator=generator), 2 * scale, 1 / scale)

    def model(self) -> torch.nn.Module:
        return IMAGE_MODELS[self._model_name]((3, 32, 32), 10)

    def train_samples(self) -> ByteImages:
        return self._samples

    def test_samples(self) -> ByteImages:
        samples = self._samples
        return ByteImages(samples.images[:1], samples.targets[:1], samples.mean, samples.scale)


if __name__ == "__main__":
    main()
