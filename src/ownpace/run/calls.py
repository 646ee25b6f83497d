"""What Python programs call: `train`, `compare`, `open_run`. Their arguments are the fields of `Config`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from ownpace.algorithms import ALGORITHMS, COMPARED, DEFAULT
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import DivergenceError, InputError, shown, unknown
from ownpace.core.learning.task import Task
from ownpace.core.whole_file import write_text
from ownpace.engines.job import OnProgress
from ownpace.run.again import started_again
from ownpace.run.comparison import Comparison
from ownpace.run.config import Config, help_of
from ownpace.run.fields import types_of
from ownpace.run.hooks import OnEvent
from ownpace.run.place import COMPARISON, check_comparison, check_run
from ownpace.run.result import Result, load_result
from ownpace.run.resume import find_resumption
from ownpace.run.saved import label
from ownpace.run.watching import Watching
from ownpace.tasks import TASKS

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Call(Config):
    """What every call takes: the fields of `Config`, where to write, and what to hear of the run."""

    out: str | Path | None = None
    overwrite: bool = False
    progress: bool | None = None
    on_progress: OnProgress | None = None
    on_event: OnEvent | None = None


@dataclass(frozen=True, kw_only=True)
class _TrainCall(_Call):
    """The algorithm may be given without its name; and a run may go on."""

    algorithm: str | Algorithm = field(default=DEFAULT, kw_only=False)
    resume: str | Path | None = None


@dataclass(frozen=True, kw_only=True)
class _CompareCall(_Call):
    """Several algorithms, each with each seed."""

    algorithms: str | Sequence[str | Algorithm] = field(default=COMPARED, kw_only=False)
    seeds: Sequence[int] | None = None


def _takes(arguments: Callable[P, object], *but: str) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the arguments of a dataclass: for type checkers and editors, and at run time for `help()`.

    So the arguments are written down once, with their types and defaults, in `Config`.
    """
    assert isinstance(arguments, type)
    hints = types_of(arguments)
    signature = inspect.signature(arguments)
    # Types instead of the strings that dataclasses keep: help() then shows them readably.
    parameters = [p.replace(annotation=hints[name]) for name, p in signature.parameters.items() if name not in but]

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        fields = "\n".join(f"    {name}: {help_of(name).text}" for name in Config.__dataclass_fields__)
        function.__doc__ = f"{inspect.getdoc(function)}\n\nFields of `Config`:\n{fields}\n"
        function.__dict__["__signature__"] = signature.replace(parameters=parameters)
        return function

    return decorate


@_takes(_TrainCall)
def train(
    algorithm: object = None,
    *positional: object,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: str | Path | None = None,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    on_event: OnEvent | None = None,
    **fields: object,
) -> Result:
    """Train, in one call: `ownpace.train("sync", task="digits", fleet=[4, 2, 1, 1], epochs=5)`.

    Args:
        algorithm: A name (`ownpace list` describes them), an algorithm of your own, or where it is: `my.py:Patient`.
        *positional: Nothing: all else is given by name.
        out: The run's folder (None: nothing is written).
        overwrite: Whether that folder may hold an earlier run.
        resume: The folder of a run to go on with, or a checkpoint in it. Fields are then those that change.
        progress: Whether to show on standard error how far it is (None: in a terminal or a notebook; elsewhere a line
            every ten seconds).
        on_progress: Called now and then with a `ProgressReport`.
        on_event: Called with every event; if it fails, that is said once, and the run goes on without it.
        **fields: The fields of `ownpace.Config`.

    Raises:
        OwnpaceError: Bad input, or the run ended early: it diverged, a machine died, or Ctrl-C. The error's `result` is
            then what had come out.

    >>> train(task="quadratic", fleet=[2, 1], epochs=4, momentum=0.9, lr=0.05).summary.loss < 10
    True
    """
    _check_names("train", positional, fields, _TrainCall)
    if algorithm is not None:
        fields["algorithm"] = _no_other_thing(algorithm)
    folder = None if out is None else Path(out)
    with Watching(progress, on_progress, on_event) as watching:
        result = _trained(watching, fields, folder, resume, overwrite=overwrite)
    if result.error is not None:
        if (hint := result.how_to_go_on()) is not None:
            result.error.add_note(hint)
        result.error.result = result  # Ctrl-C in a notebook must not cost the model
        raise result.error
    return result


def _trained(
    watching: Watching, fields: dict[str, object], folder: Path | None, resume: str | Path | None, *, overwrite: bool
) -> Result:
    """What comes out of a run, be it one that begins, goes on, or was started again by torchrun."""
    again = started_again(folder)
    if again is not None and again.resumption is not None:
        return watching.execute(again.resumption.config, folder, resumption=again.resumption)
    if resume is None:
        make: Callable[..., Config] = Config
        return watching.execute(make(**fields), folder, overwrite=overwrite or again is not None)
    found = find_resumption(resume, fields)
    return watching.execute(found.config, folder or found.run, overwrite=overwrite, resumption=found)


@_takes(_CompareCall, "algorithm", "seed")
def compare(
    algorithms: str | Sequence[str | Algorithm] = COMPARED,
    *positional: object,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    on_event: OnEvent | None = None,
    **fields: object,
) -> Comparison:
    """Compare algorithms on the same fleet, task and seeds: `ownpace.compare(["sync", "pace"], fleet=[4, 2, 1, 1])`.

    Args:
        algorithms: A list (or `"sync,pace"`): names, algorithms of your own, or where they are: `my.py:Patient`.
        *positional: Nothing: all else is given by name.
        seeds: Each algorithm is run with each of them (None: with 0).
        out: The folder of all runs, which get one each in it (None: nothing is written).
        overwrite: Whether those folders may hold earlier runs.
        progress: Whether to show on standard error how far it is (None: in a terminal or a notebook; elsewhere a line
            every ten seconds).
        on_progress: Called now and then with a `ProgressReport`.
        on_event: Called with every event; if it fails, that is said once, and the run goes on without it.
        **fields: The fields of `ownpace.Config`. `parameters` are by algorithm: `{"stale": {"staleness": 5}}`.

    Returns:
        All runs. One that diverged is among them, as that is what a comparison is for.

    Raises:
        OwnpaceError: Bad input, or a run ended early: a machine died, or Ctrl-C.

    >>> compared = compare(["sync", "pace"], task="quadratic", fleet=[2, 1], epochs=1)
    >>> list(compared.results), len(compared.results["pace"].history) > 1
    (['sync', 'pace'], True)
    """
    _check_names("compare", positional, fields, _CompareCall, "algorithm", "seed")
    folder = None if out is None else Path(out)
    _check_seeds(seeds)
    runs = [(each, _place(folder, each, seeds)) for each in _configs(algorithms, seeds, fields)]
    with Watching(progress, on_progress, on_event) as watching:
        comparison = _compared(watching, runs, folder, overwrite=overwrite)
    if folder is not None:
        write_text(folder / COMPARISON, comparison.to_json(folder))
    return comparison


def _compared(
    watching: Watching, runs: Sequence[tuple[Config, Path | None]], folder: Path | None, *, overwrite: bool
) -> Comparison:
    if folder is not None:
        check_comparison(folder, overwrite=overwrite)
    for config, place in runs:  # so that bad input is found before anything runs
        config.job(place)
        if place is not None:
            check_run(place, overwrite=overwrite)
    results: list[Result] = []
    for config, place in runs:
        results.append(watching.execute(config, place, overwrite=overwrite))
        error = results[-1].error
        # Ctrl-C or a dead machine would end the next run, too.
        if error is not None and not isinstance(error, DivergenceError):
            error.result = results[-1]
            raise error
    return Comparison(tuple(results))


def open_run(folder: str | Path, task: Task | None = None) -> Result:
    """What came out of a run of the past, from its folder.

    Args:
        folder: That of the run.
        task: Whose model the weights belong to, where its description cannot say that: a class of a script's own.

    Raises:
        InputError: The folder holds no run that has ended.
    """
    return load_result(Path(folder), task)


def _check_names(
    function: str, positional: Sequence[object], given: Iterable[str], call: type[_Call], *but: str
) -> None:
    """Raise if an argument has no name, or one that is not known."""
    if positional:
        raise InputError(f"{function} was given {positional[0]!r} without a name; write, for instance, task=…")
    known = [name for name in call.__dataclass_fields__ if name not in but]
    for name in given:
        if name not in known:
            raise unknown("argument", name, known)


def _no_other_thing(given: object) -> object:
    """What stands where the algorithm belongs; raises if it is something that belongs elsewhere."""
    if isinstance(given, Config):
        raise InputError("train was given a configuration; run it with ownpace.execute(config)")
    if isinstance(given, Task) or (isinstance(given, str) and given in TASKS and given not in ALGORITHMS):
        raise InputError(f"train was given {given!r}, which is a task; write task={given!r}")
    return given


def _check_seeds(seeds: Sequence[int] | None) -> None:
    """Raise if these are not numbers, each once: a run that is made twice would count as two."""
    whole = isinstance(seeds, Sequence) and all(isinstance(each, int) for each in seeds)
    if seeds is not None and (not whole or not 0 < len(seeds) == len(set(seeds))):
        raise InputError(f"seeds is {shown(seeds)}; give a list of at least one, each once, as in seeds=[0, 1, 2]")


def _configs(
    algorithms: str | Sequence[str | Algorithm], seeds: Sequence[int] | None, fields: dict[str, object]
) -> list[Config]:
    if isinstance(algorithms, Algorithm):
        algorithms = [algorithms]
    elif isinstance(algorithms, str):  # as on the command line
        algorithms = [name.strip() for name in algorithms.split(",") if name.strip()]
    names = [label(each) for each in algorithms]
    if not names or len(set(names)) < len(names):
        raise InputError(f"algorithms are {names}; name at least one, each once")
    given = fields.pop("parameters", None) or {}
    if not isinstance(given, dict):
        raise InputError(f"parameters is {given!r}; give a dictionary by algorithm: {{'stale': {{'staleness': 5}}}}")
    for name in given:
        if name not in names:
            raise unknown("algorithm in parameters:", name, names)
    make: Callable[..., Config] = Config
    return [
        make(algorithm=each, parameters=given.get(name, {}), seed=seed, **fields)
        for each, name in zip(algorithms, names, strict=True)
        for seed in (seeds or (0,))
    ]


def _place(folder: Path | None, config: Config, seeds: Sequence[int] | None) -> Path | None:
    """The folder of one run, named as `ownpace compare` does."""
    name = label(config.algorithm)
    return None if folder is None else folder / (f"{name}-{config.seed}" if len(seeds or ()) > 1 else name)
