"""Nobody waits for torch to read a help page, and the shell completes names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

import ownpace as package
from ownpace.algorithms import ALGORITHMS
from ownpace.cli.commands import COMMANDS, Commands
from ownpace.cli.main import app
from ownpace.core.choices import OPTIMIZERS
from ownpace.core.learning.optimizer import ELEMENTWISE

HEAVY = ("torch", "numpy", "simpy", "zmq", "matplotlib")
SHOW_ALL = f"""
import sys
from ownpace.cli.main import main

for line in {["--version", "--help", *(f"{name} --help" for name in COMMANDS)]!r}:
    try:
        main(line.split())
    except SystemExit as stopped:
        assert stopped.code == 0, line
import ownpace
assert ownpace.Fleet and ownpace.ALGORITHMS and ownpace.Config  # neither do these need it
import ownpace.run.listing, ownpace.run.following, ownpace.run.opened, ownpace.report.page.document
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
assert ownpace.TensorSamples and "torch" in sys.modules  # and what needs it gets it
"""


def test_help_and_version_do_not_import_torch():
    shown = subprocess.run([sys.executable, "-c", SHOW_ALL], capture_output=True, text=True, check=True, timeout=110)
    assert shown.stdout.splitlines()[-1] == "heavy: []"


WITHOUT_EXTRAS = """
import sys
for name in ("sklearn", "matplotlib", "PIL", "pandas"):
    sys.modules[name] = None  # importing it raises ImportError
from ownpace.cli.main import main
main(["compare", "--algorithms", "sync,pace", "--epochs", "1", "--out", "c"])
"""


def test_nothing_but_the_package_itself_is_needed():
    shown = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, timeout=110)
    assert shown.returncode == 0, shown.stderr
    assert "no figure: it needs matplotlib; install it: pip install 'ownpace[plot]'" in shown.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_page_has_the_first_line_of_each_command(name):
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    command = group.get_command(None, name)
    assert command is not None
    assert command.help is not None
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name][1]


def test_every_name_that_is_promised_can_be_imported():
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert package.report.summarize is not None  # modules, too, as if they had been imported
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        package.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_optimizers_of_the_help_are_those_there_are():
    assert tuple(ELEMENTWISE) == OPTIMIZERS


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ownpace tr", ["train"]),
        ("ownpace train --algorithm s", [name for name in ALGORITHMS if name.startswith("s")]),
        ("ownpace train --fleet w", ["wan"]),
        ("ownpace compare --algorithms sync,bal", ["sync,balanced"]),
    ],
)
def test_the_shell_completes_names(typed, offered):
    words = typed.split()
    environment = os.environ | {
        "_OWNPACE_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    ask = "import sys; sys.argv[0] = 'ownpace'; from ownpace.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=environment, timeout=110)
    assert done.stdout.split() == offered, done.stderr


def test_ctrl_c_while_it_is_imported_is_one_line(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "ownpace", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=110, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ownpace: interrupted\n")
