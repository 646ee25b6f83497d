"""The options that `train` and `compare` share, and what becomes of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.errors import InputError
from ownpace.core.learning.optimizer import ELEMENTWISE
from ownpace.core.learning.sampling import Sampling
from ownpace.core.learning.schedule import ScheduleShape
from ownpace.engines import ENGINES
from ownpace.engines.job import Precision
from ownpace.fleet import PRESETS
from ownpace.run import Config
from ownpace.tasks import TASKS

_RUN, _LEARN, _END, _OUT = "What to run", "How to learn", "When to stop", "What to write"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


def _option(text: str, *names: str, panel: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


ALGORITHM_HELP = f"{_names(ALGORITHMS)}; `ownpace list` describes them."
Out = Annotated[Path | None, _option("Folder for the results (default: a new one in runs/).", panel=_OUT)]
Overwrite = Annotated[bool, _option("Replace what an earlier run left in --out.", "--overwrite", panel=_OUT)]
Json = Annotated[bool, _option("Print one JSON object as the last line.", "--json", panel=_OUT)]


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The options of `train` and `compare` that describe a run, but for algorithm and seed."""

    task: Annotated[str, _option(f"What to train: {_names(TASKS)}.", panel=_RUN)] = "digits"
    task_parameter: Annotated[
        list[str] | None,
        _option("A parameter of the task; repeatable.", "-t", "--task-parameter", metavar="NAME=VALUE", panel=_RUN),
    ] = None
    model: Annotated[str | None, _option("One of the task's models.", panel=_RUN)] = None
    fleet: Annotated[
        str | None,
        _option(
            f"A preset ({_names(PRESETS)}), relative paces (4,2,1,1; 1 is 1000 samples/s), x4 for four workers at "
            "full speed, or a .toml file. Default: 4,2,1,1; under torchrun, its processes at full speed.",
            panel=_RUN,
        ),
    ] = None
    engine: Annotated[
        str | None,
        _option(
            f"Who answers: {_names(ENGINES)}; `compare` also takes both. Default: virtual; under torchrun, process.",
            panel=_RUN,
        ),
    ] = None
    timing_only: Annotated[bool, _option("Simulate time alone, no gradients.", "--timing-only", panel=_RUN)] = False
    device: Annotated[str, _option("Where gradients are computed: cpu, cuda …", panel=_RUN)] = "cpu"
    precision: Annotated[str, _option(f"Of forward passes (autocast): {_names(get_args(Precision))}.", panel=_RUN)] = (
        "float32"
    )
    cuda_graphs: Annotated[
        bool,
        _option(
            "On a card, record each gradient once and replay it: for models that do the same in every forward pass.",
            "--cuda-graphs",
            panel=_RUN,
        ),
    ] = False
    batch_size: Annotated[int, _option("Samples of each worker per update.", panel=_LEARN)] = 32
    micro_batch: Annotated[
        int | None, _option("Samples per gradient computation (default: the batch).", panel=_LEARN)
    ] = None
    optimizer: Annotated[str, _option(f"{_names(ELEMENTWISE)}.", panel=_LEARN)] = "sgd"
    lr: Annotated[float, _option("Learning rate.", panel=_LEARN)] = 0.05
    momentum: Annotated[float, _option("Momentum (sgd, rmsprop).", panel=_LEARN)] = 0.0
    weight_decay: Annotated[float, _option("Weight decay.", panel=_LEARN)] = 0.0
    schedule: Annotated[
        str, _option(f"The learning rate over samples: {_names(get_args(ScheduleShape))}.", panel=_LEARN)
    ] = "constant"
    warmup_samples: Annotated[int, _option("Raise the learning rate over these.", panel=_LEARN)] = 0
    sampling: Annotated[str, _option(f"Who gets which samples: {_names(get_args(Sampling))}.", panel=_LEARN)] = "queue"
    samples: Annotated[int | None, _option("Stop after this many samples.", panel=_END)] = None
    epochs: Annotated[float | None, _option("Stop after this many epochs (default: 20).", panel=_END)] = None
    seconds: Annotated[float | None, _option("Stop at this time of the engine's clock.", panel=_END)] = None
    target: Annotated[float | None, _option("The accuracy to be timed, as in 0.95.", panel=_END)] = None
    stop_at_target: Annotated[
        bool, _option("Stop as soon as the target is reached.", "--stop-at-target", panel=_END)
    ] = False
    eval_every: Annotated[
        int | None, _option("Samples between evaluations (default: 40 of them, at most).", panel=_END)
    ] = None
    evaluate: Annotated[
        str,
        _option(
            "On processes: judge the model `during` the run, or keep snapshots and judge them `after` it.", panel=_END
        ),
    ] = "during"
    no_detail: Annotated[
        bool,
        _option("Record evaluations and sums, not each computation, transfer and wait.", "--no-detail", panel=_OUT),
    ] = False

    def config(self, algorithm: str, parameters: list[str] | None, seed: int, engine: str | None = None) -> Config:
        """The configuration of one run."""
        given = dict(vars(self))
        given["engine"] = engine or self.engine
        given["task_parameters"] = parse_parameters(given.pop("task_parameter"), "-t")
        given["detail"] = not given.pop("no_detail")
        return Config(algorithm=algorithm, parameters=parse_parameters(parameters, "-p"), seed=seed, **given)


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take the options of `Shared`, which it gets as its argument `shared`."""
    own = {name: hint for name, hint in get_type_hints(command, include_extras=True).items() if name != "return"}
    theirs = get_type_hints(Shared, include_extras=True)
    defaults = {field.name: field.default for field in fields(Shared)}

    @wraps(command)
    def collected(**given: Any) -> None:
        command(shared=Shared(**{name: given.pop(name) for name in defaults}), **given)

    expanded = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=theirs[name])
        for name, default in defaults.items()
    ]
    signature: list[Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        signature += expanded if name == "shared" else [parameter.replace(annotation=own[name])]
    collected.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    collected.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
    return collected


def parse_parameters(given: list[str] | None, option: str) -> dict[str, str]:
    """The mapping that repeated NAME=VALUE options spell out."""
    parameters = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"{option} was given '{text}'; write {option} NAME=VALUE, as in {option} staleness=3")
        parameters[name.strip()] = value.strip()
    return parameters


def folder_for(out: Path | None, *parts: str) -> Path:
    """The folder that --out names, or one in runs/ that nothing is in yet."""
    if out is not None:
        if out == Path():
            raise InputError("--out was given the current folder; name one of its own, as in --out runs/first")
        return out
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / "-".join((stamp, *parts))
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name("-".join((stamp, *parts, str(number))))
    return folder
