"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ownpace.cli.main import main

Ran = tuple[int, str, str]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OWNPACE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing answers there: no test goes online
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")


@pytest.fixture
def ownpace(capfd) -> Callable[[str], Ran]:
    """Run a command line: its exit code, standard output and standard error."""

    def run(arguments: str) -> Ran:
        with pytest.raises(SystemExit) as stopped:
            main(arguments.split())
        out, err = capfd.readouterr()
        code = stopped.value.code
        assert isinstance(code, int)
        return code, out, err

    return run
