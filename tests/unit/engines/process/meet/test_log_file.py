"""Log files of processes."""

from __future__ import annotations

import logging

import pytest
from tests.limits import largest_file

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.meet.log_file import LogFile


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("ownpace", logging.INFO, __file__, 1, text, None, None)


def test_a_log_goes_on_after_an_earlier_one(tmp_path):
    for text in ("one", "two \ud800"):
        log = LogFile(tmp_path / "logs", "worker-0")
        log.emit(record(text))
        assert (tmp_path / "logs" / "worker-0.log").read_text().splitlines()[-1].startswith(text[:3])
        log.close()
    assert (tmp_path / "logs" / "worker-0.log").read_text() == "one\ntwo \\ud800\n"


def test_a_full_disk_ends_the_log_and_says_so_once(tmp_path, capsys):
    log = LogFile(tmp_path, "hub")
    with largest_file(1000):
        for number in range(300):
            log.emit(record(f"line {number}"))
    log.close()
    assert capsys.readouterr().err.count("the run goes on without it") == 1
    written = (tmp_path / "hub.log").read_text()
    assert written == "".join(f"line {number}\n" for number in range(written.count("\n")))
    assert 980 < len(written) <= 1000


def test_a_file_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "hub.log").symlink_to("file")
    (tmp_path / "server-0.log").mkdir()
    for folder, name in ((tmp_path / "file", "hub"), (tmp_path, "hub"), (tmp_path, "server-0")):
        with pytest.raises(InputError, match="cannot be written"):
            LogFile(folder, name)
    assert (tmp_path / "file").read_text() == "mine"
