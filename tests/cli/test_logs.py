"""`--verbose` and `--log-files`."""

from __future__ import annotations

import logging
import sys

import pytest

from ownpace.cli.logs import show_logs

LOGGER = logging.getLogger("ownpace.some.part")


@pytest.fixture(autouse=True)
def quiet_again():
    yield
    show_logs(0)


@pytest.mark.parametrize(("verbose", "shown"), [(1, ["INFO"]), (2, ["INFO", "DEBUG"])])
def test_how_often_it_is_given_decides_what_is_shown(capfd, verbose, shown):
    show_logs(verbose)
    show_logs(verbose)  # a second call does not show everything twice
    LOGGER.info("begun")
    LOGGER.debug("in detail")
    err = capfd.readouterr().err.splitlines()
    assert [line.split()[2] for line in err] == shown
    assert err[0].endswith("INFO ownpace.some.part: begun")


def test_without_it_nothing_below_warnings_is_shown(capfd):
    show_logs(0)
    LOGGER.info("begun")
    assert capfd.readouterr().err == ""


def test_the_stream_is_the_one_of_that_moment(monkeypatch, capfd, tmp_path):
    show_logs(1)
    with (tmp_path / "err").open("w") as other:
        monkeypatch.setattr(sys, "stderr", other)  # as the progress display does
        LOGGER.info("begun")
    assert "begun" in (tmp_path / "err").read_text()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("option", ["-v", "-vv", "-vvvv", "--verbose --verbose"])
def test_commands_take_it(ownpace, option):
    assert ownpace(f"train --task quadratic --samples 100 --json --out r {option}")[0] == 0
    assert logging.getLogger("ownpace").level == (logging.INFO if option == "-v" else logging.DEBUG)


def test_log_files_under_torchrun_need_a_folder_that_all_processes_know(ownpace, monkeypatch):
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    code, _, err = ownpace("train --log-files")
    assert code == 2
    assert "--log-files under torchrun needs --out" in err
