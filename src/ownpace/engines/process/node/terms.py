"""What every node of a run must know, and the check that all of them know the same."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.learning.layout import Layer, Layout
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.version import __version__
from ownpace.engines.job import Job
from ownpace.engines.process.node.optimizer_copy import OptimizerCopy
from ownpace.engines.process.talk.links import PrescribedLinks
from ownpace.engines.roster import Roster

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class RunTerms:
    """What every node of a run must know. A process hands it to the helpers that it starts."""

    algorithm: Algorithm
    workers: tuple[str, ...]
    num_servers: int
    layers: tuple[Layer, ...]
    dtype: torch.dtype
    optimizer: OptimizerSpec | OptimizerCopy
    samples: int | None = None
    seconds: float | None = None
    eval_every: int | None = None
    detail: bool = False
    num_models: int = 1
    """Parts of the vector that are averaged over samples of their own."""
    checkpoint_every: int | None = None
    """Samples after which a generation ends in good order, if that is to be."""
    sites: tuple[tuple[str, str], ...] = ()
    """The name of each worker and server, and where it is; none where all are at one site."""
    links: PrescribedLinks | None = None
    """Where bandwidths are prescribed, those."""
    direct_bytes: int = 0
    """What has at most this many bytes is summed in one hop."""

    @classmethod
    def of(cls, job: Job, layout: Layout, dtype: torch.dtype) -> RunTerms:
        """Those of a job."""
        return cls(
            algorithm=job.algorithm,
            workers=tuple(worker.name for worker in job.fleet.workers),
            num_servers=len(job.servers),
            layers=layout.layers,
            dtype=dtype,
            optimizer=job.optimizer,
            samples=job.samples,
            seconds=job.seconds,
            eval_every=job.evaluations_every,
            detail=job.detail,
            checkpoint_every=job.checkpoint_every if job.on_checkpoint is not None else None,
            links=PrescribedLinks.of(job),
            direct_bytes=job.fleet.network.direct_bytes,
            sites=(
                *((worker.name, worker.machine.site) for worker in job.fleet.workers),
                *((f"server-{index}", job.fleet.site_of(server)) for index, server in enumerate(job.servers)),
            ),
        )

    @property
    def layout(self) -> Layout:
        """Of the model's parameters."""
        return Layout.of([(layer.name, layer.shape, layer.channels_last) for layer in self.layers])

    @property
    def budget(self) -> float:
        """Samples after which training is over."""
        return self.samples or math.inf

    def budget_after(self, samples: int) -> float:
        """The samples after which a generation ends that begins at `samples`."""
        every = self.checkpoint_every
        return self.budget if every is None else min(self.budget, (samples // every + 1) * every)

    @property
    def deadline_s(self) -> float:
        """The run's time after which training is over."""
        return math.inf if self.seconds is None else self.seconds

    @property
    def is_bounded(self) -> bool:
        """Whether there is a budget at all: a user's loop ends with its data, and every update of it counts."""
        return self.samples is not None or self.seconds is not None

    @property
    def num_counts(self) -> int:
        """How many counts of samples go with a gradient: the new ones, and each model's."""
        return 1 + self.num_models if self.num_models > 1 else 0

    def roster(self, workers: Sequence[str] | None = None) -> Roster:
        """The nodes that take part, with these workers, or with all."""
        return Roster.plan(self.algorithm, workers or self.workers, self.num_servers, self.layout, dict(self.sites))

    def lr_factor(self, samples: float) -> float:
        """The schedule's factor on the learning rate."""
        if isinstance(self.optimizer, OptimizerSpec):
            return self.optimizer.schedule.factor(samples, self.samples)
        return 1.0

    def fingerprint(self, **more: object) -> dict[str, str]:
        """What must be the same on all workers, in words that an error can quote."""
        layout = self.layout
        layers = [(layer.name, tuple(layer.shape), layer.channels_last) for layer in layout.layers]
        # A few digits tell two models of the same size apart, and fit into a line.
        shapes = hashlib.sha256(repr(layers).encode()).hexdigest()[:8]
        dtype = str(self.dtype).removeprefix("torch.")
        said = {
            "version of ownpace": __version__,
            "version of torch": torch.__version__,
            "algorithm": repr(self.algorithm),
            "model": f"{layout.size:,} parameters in {len(layout.layers)} layers ({shapes}, {dtype})",
            "optimizer": self.optimizer.words if isinstance(self.optimizer, OptimizerCopy) else repr(self.optimizer),
            "budget": f"{self.samples} samples, {self.seconds} s",
            **{name.replace("_", " "): str(value) for name, value in more.items()},
        }
        # A function is somewhere else in each process.
        return {name: _ADDRESS.sub("", words) for name, words in said.items()}
