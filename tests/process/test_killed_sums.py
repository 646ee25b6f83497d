"""Processes are killed and stopped in the middle of sums through memory, at moments that are drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ownpace.engines.process.talk import futex

pytestmark = pytest.mark.skipif(not futex.is_available(), reason="no futex here: sums go through sockets")


MANY = pytest.param(2, 120, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])


@pytest.mark.parametrize(("seed", "families"), [(1, 8), MANY])
def test_the_others_notice_let_go_of_the_memory_and_never_read_what_is_old(seed: int, families: int):
    script = Path(__file__).with_name("killed_sums.py")
    done = subprocess.run([sys.executable, str(script), str(seed), str(families)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["complaints"] == []
    assert min(found["blows"]["kill"], found["blows"]["stop"]) >= families // 2
    assert found["sums"] > 10 * families
