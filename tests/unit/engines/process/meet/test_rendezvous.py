"""What the environment says about how processes find each other."""

from __future__ import annotations

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.meet.environment import TIMEOUT_S, default_timeout_s
from ownpace.engines.process.meet.rendezvous import Rendezvous


@pytest.mark.parametrize(("text", "seconds"), [("300", 300.0), ("0.5", 0.5), ("", TIMEOUT_S)])
def test_the_environment_says_how_long_to_wait_for_the_others(monkeypatch, text, seconds):
    monkeypatch.setenv("OWNPACE_TIMEOUT_S", text)
    assert default_timeout_s() == seconds
    assert Rendezvous("127.0.0.1", 1, "", "", "127.0.0.1").timeout_s == seconds
    assert Rendezvous("127.0.0.1", 1, "", "", "127.0.0.1", timeout_s=7.0).timeout_s == 7.0


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("OWNPACE_TIMEOUT_S", text)
    with pytest.raises(InputError, match=f"OWNPACE_TIMEOUT_S is '{text}'; it must be a number of seconds above 0"):
        default_timeout_s()
