"""`--help`, which must be readable in 80 columns."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest

from ownpace.algorithms import ALGORITHMS
from ownpace.cli import commands
from ownpace.run import Config
from ownpace.run.config import help_of

COMMANDS = ["", *commands.COMMANDS]


def words_of(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("columns", [60, 80, 140])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_too_long_and_nothing_is_cut(ownpace, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = ownpace(f"{command} --help")
    assert (code, err) == (0, "")
    # A command to be copied stays whole, however narrow it is.
    commands_shown = ("  ownpace ", "  torchrun ")
    assert max(len(line) for line in out.splitlines() if columns > 60 or not line.startswith(commands_shown)) <= columns
    for unwanted in ("<bool>", "<str>", "<int>", "│", "None"):
        assert unwanted not in out
    assert not any(line.endswith(("…", " ")) for line in out.splitlines() if "cuda:1 …" not in line)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_every_field_is_an_option_with_its_help(ownpace, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = ownpace(f"{command} --help")
    for field in fields(Config):
        about = help_of(field.name)
        names = about.option.split("/") if about.option else [f"--{field.name.replace('_', '-')}"]
        assert all(name in out for name in names), names
        if (command, field.name) not in (("compare", "parameters"), ("compare", "algorithm")):
            assert about.text in words_of(out)


def test_what_cannot_be_compared_is_not_offered(ownpace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "auto: choose for me" in words_of(ownpace("train --help")[1])
    _, out, _ = ownpace("compare --help")
    assert not re.search(r"\bauto\b", out)
    assert ", ".join(ALGORITHMS) in words_of(out)


def test_values_and_defaults_are_shown(ownpace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = ownpace("train --help")
    assert "  -p, --parameter NAME=VALUE\n" in out
    assert "  --sampling queue|iid|shards\n" in out
    assert "  --batch-size N        Samples of each worker per update. [default: 32]\n" in out
    assert "  --timing-only         Simulate time alone, without gradients.\n" in out
    assert "--no-timing-only" not in out
    assert "  --detail, --no-detail " in out
    _, out, _ = ownpace("compare --help")
    assert "  --algorithm, --algorithms NAMES\n" in out
    assert "  -p, --parameter [ALGORITHM.]NAME=VALUE\n" in out
    assert "[default: sync,balanced,pace,stride]" in words_of(out)


def test_the_first_page_names_commands_and_exit_codes(ownpace):
    _, out, _ = ownpace("")
    assert out == ownpace("--help")[1]
    for word in ("train", "compare", "list", "--version", "Show the version.", "Exit codes: 0 done"):
        assert word in out


@pytest.mark.parametrize("command", ["", pytest.param("compare", marks=pytest.mark.slow)])
def test_the_first_suggestion_reaches_its_target(ownpace, command):
    suggested = re.findall(r"^  ownpace (compare .+)$", ownpace(f"{command} --help")[1], re.MULTILINE)
    code, out, _ = ownpace(f"{suggested[0]} --no-detail --json --out r")
    assert code == 0
    runs = json.loads(out.splitlines()[-1])["runs"]
    assert len(runs) == 3
    for run in runs:
        assert run["target"] == 0.95
        assert run["time_to_target"] is not None
        assert run["accuracy"] > 0.95
        assert run["warnings"] == []
