"""The entry point: the commands, and how errors are reported."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import ownpace
from ownpace.cli import streams
from ownpace.cli.commands import Commands, register_all
from ownpace.cli.help import HelpOption, show_help
from ownpace.core import own_code
from ownpace.core.contract.errors import InputError, Interrupted, OwnpaceError, listed, shown

# What typer raises for bad usage; newer versions bring their own copy of click, where these live.
ClickException: type[Exception] = typer.BadParameter.__mro__[2]

MOST_CHARACTERS = 2000
"""Of an error."""
_OF_PYDANTIC = ", unable to parse string as a number"
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
"""What says that a path was given which none can be; other errors of the system are explained where they happen."""
app = typer.Typer(
    cls=Commands,
    # Help and errors are laid out by us, and tracebacks of bugs are Python's own.
    add_help_option=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 a fault of ours, 2 bad input, 3 diverged, 4 a machine died, 5 deadlock, "
    "6 not all could be written, 130 Ctrl-C.",
)
register_all(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ownpace {ownpace.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def ownpace_(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    help_: HelpOption = False,
) -> None:
    """Train one model on machines of different speed, every machine at its own pace.

    To begin with, compare three algorithms on four simulated machines of different speed:

      ownpace compare --algorithms sync,balanced,stride
    """
    if context.invoked_subcommand is None:
        show_help(context)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line. What a user caused ends in one line and its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    streams.outlast_readers()
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # where --algorithm module:Class looks, as `python -m` does
    try:
        # Not standalone: typer would print errors itself and exit with codes of its own.
        code = app(args=arguments, standalone_mode=False)
    except ClickException as error:
        _fail(_usage(error, arguments), InputError.exit_code)
    except OwnpaceError as error:
        from ownpace.engines import is_main_process

        # Another process has printed it: under torchrun, every rank would repeat the same line.
        if error.told and not is_main_process():
            sys.exit(error.exit_code)
        _fail(str(error), error.exit_code)
    except Exception as error:
        if (line := _explained(error)) is None:
            raise
        _fail(line, InputError.exit_code)
    if code == Interrupted.exit_code:  # before anything was begun
        _fail("interrupted", code)
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Exception) -> str | None:
    """What ended a run though it was not raised on purpose; None: it is a fault of ours, or all of it is to be seen."""
    if isinstance(error, OSError) and error.errno in _NO_PATH:
        return f"{shown(error.filename)} cannot be used: {error.strerror}; give another"
    if isinstance(error, MemoryError | RuntimeError):
        from ownpace.core.learning.out_of_memory import is_out_of_memory

        if is_out_of_memory(error):
            return "there is not enough memory; use a smaller task, model or batch, or fewer workers"
    if not (own := own_code.files_in_use()) or logging.getLogger("ownpace").level:
        return None
    where = own_code.in_a_line(error, own[-1])
    return f"{where}: raised in a run of your own code in {listed(own)}; mend that; --verbose shows the whole traceback"


def _usage(error: Exception, arguments: Sequence[str]) -> str:
    """What was wrong with the options, what was given, and what to do."""
    message: str = error.format_message()  # type: ignore[attr-defined]  # of click's exceptions
    # There is no option of that name. One without its value has a name, too, but no others like it.
    if isinstance(option := getattr(error, "option_name", None), str) and hasattr(error, "possibilities"):
        # Without the dashes, by which all are alike.
        offered = [each.lstrip("-") for each in getattr(error, "possibilities", None) or ()]
        near = get_close_matches(option.lstrip("-"), offered, n=1)
        message = f"No such option: {option}" + (f"; did you mean --{near[0]}?" if near else "")
    message = message[:300].rstrip(".").replace(". Did you mean", "; did you mean").replace(_OF_PYDANTIC, "")
    options = getattr(getattr(error, "param", None), "opts", ())
    given = [value for option, value in pairwise(arguments) if option in options]
    was_given = f" (given: {shown(given[0])})" if given else ""
    return f"{message}{was_given}{'' if message.endswith('?') else ';'} --help shows what is allowed"


def _fail(message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    # What a user gave, or a file holds, may stand in it: it must neither command the terminal nor fill it.
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line[:MOST_CHARACTERS])
    print(f"ownpace: {line}{'…' if len(message) > MOST_CHARACTERS else ''}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
