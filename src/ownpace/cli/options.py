"""The options of `train` and `compare`: made from the fields of `Config`, and turned back into one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache, wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, get_type_hints

import typer

from ownpace.cli.completion import KNOWN, one_of
from ownpace.cli.help import HelpOption
from ownpace.cli.logs import LEVELS
from ownpace.core.contract.errors import InputError
from ownpace.core.settings import choices, fits
from ownpace.run.config import Config, help_of
from ownpace.run.fields import option_types_of
from ownpace.run.help import RUN, WRITE

_METAVARS = {int: "N", float: "X", str: "NAME"}

Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Over several hosts: the key of the run may lie open in the store.",
        rich_help_panel=RUN,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="Start from the config.json of a run.", metavar="FILE", rich_help_panel=RUN),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume", help="Go on with a run: its folder, or a checkpoint in it.", metavar="RUN", rich_help_panel=RUN
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the results (default: a new one in runs/).", metavar="FOLDER", rich_help_panel=WRITE),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what an earlier run left in --out.", rich_help_panel=WRITE)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.", rich_help_panel=WRITE)]
Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        max=len(LEVELS) - 1,
        clamp=True,
        help="Log to standard error what happens; twice: in detail.",
        rich_help_panel=WRITE,
    ),
]


@dataclass(frozen=True)
class Given:
    """What the command line says about a run: the fields of `Config` that were given as options."""

    fields: Mapping[str, object]

    def config(self, file: Path | None, **more: object) -> Config:
        """The configuration of one run: the file's, or the defaults, but for what was given."""
        # None says that an option was not given, so the file's value stays.
        given = {name: value for name, value in {**self.fields, **more}.items() if value is not None}
        return (Config() if file is None else Config.load(file)).override(**given)


def with_run_options(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take an option for each field of `Config`, but for those left out, as its argument `given`."""
    expanded = [_option(field.name) for field in fields(Config) if field.name not in left_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)

        @wraps(command)
        def collected(**options: object) -> None:
            given = {parameter.name: options.pop(parameter.name) for parameter in expanded}
            options.pop("help_")
            command(given=Given(_parsed(given)), **options)

        signature: list[Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            signature += expanded if name == "given" else [parameter.replace(annotation=hints[name])]
        signature.append(Parameter("help_", Parameter.KEYWORD_ONLY, default=False, annotation=HelpOption))
        # typer reads these two; a function made by a decorator has none of its own.
        collected.__dict__["__signature__"] = inspect.Signature(signature)
        collected.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
        return collected

    return decorate


def _option(name: str) -> Parameter:
    """The option for one field. Its default is None, which says that it was not given; `--help` shows the field's."""
    field, about = Config.__dataclass_fields__[name], help_of(name)
    hint = _types()[name]
    kind = _kind(hint)
    flag = f"--{name.replace('_', '-')}"
    names = about.option.split("/") if about.option else [flag]
    # With --no-, as a file may say true where the command line wants false.
    if kind is bool:
        names = [f"{flag}/--no-{flag.removeprefix('--')}"]
    known = choices(hint)
    default = field.default
    shown = default if isinstance(default, str | int | float) and not isinstance(default, bool) else None
    option = typer.Option(
        *names,
        help=about.text,
        metavar=about.metavar or ("|".join(known) if known else _METAVARS.get(kind)),
        show_default="on" if default is True else False if shown is None else str(shown),
        rich_help_panel=about.panel,
        autocompletion=one_of(offered) if (offered := KNOWN.get(name, known)) else None,
    )
    # A type checker takes what follows for types, which they are only at run time.
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@cache
def _types() -> dict[str, object]:
    return option_types_of(Config)


def _kind(hint: object) -> type:
    """The type that the command line reads for a field's."""
    if fits({}, hint):
        return list[str]
    if fits(True, hint):
        return bool
    if fits("", hint) or choices(hint):
        return str
    return int if not fits(0.5, hint) else float


def _parsed(given: Mapping[str, object]) -> dict[str, object]:
    """What was given, its NAME=VALUE options as mappings."""
    parsed: dict[str, object] = {}
    for name, value in given.items():
        if isinstance(value, list):
            parsed[name] = parse_parameters(value, (help_of(name).option or name).split("/")[0])
        elif value is not None:
            parsed[name] = value
    return parsed


def parse_parameters(given: list[str], option: str) -> dict[str, str]:
    """The mapping that repeated NAME=VALUE options spell out."""
    parameters = {}
    for text in given:
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
