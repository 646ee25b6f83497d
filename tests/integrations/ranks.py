"""Ranks of torchrun's that run a module of this folder, and what they wrote."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.process.small_net import close, on_one_machine, sgd
from tests.process.started import Start, free_port, importable


def rests(ranks: int) -> list[str]:
    """Runs that go on within an epoch. Of several ranks of `pace`, the first may see no update in it."""
    return [*(["pace"] if ranks == 1 else []), "sync", "sync end"]


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips tests where a package is not installed; found out without importing it, which takes seconds."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(packages)}")


def torchrun(ranks: int, *command: str) -> list[str]:
    where = ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", *where, *command]


def run(module: str, ranks: int, start: Start, folder: Path) -> list[Any]:
    """Run a module on that many ranks; returns what each of them wrote."""
    started = start(torchrun(ranks, "-m", f"tests.integrations.{module}", str(folder)), PYTHONPATH=importable())
    assert started.ends() == 0, started.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def without_ownpace(start: Start, script: str) -> str:
    """What a script prints that never heard of ownpace."""
    started = start([sys.executable, "-c", f"import sys; sys.modules['ownpace'] = None\n{script}"])
    assert started.ends() == 0, started.stderr
    return started.stdout


def updates_of_sync(ranks: list[Any], name: str, each: int = 1) -> list[list[list[int]]]:
    """Of each update of a synchronous run, its batches: the next `each` ones of every rank."""
    updates = []
    for epoch in zip(*(rank[name]["epochs"] for rank in ranks), strict=True):
        grouped = [[batches[at : at + each] for at in range(0, len(batches), each)] for batches in epoch]
        updates += [[batch for group in groups for batch in group] for groups in zip_longest(*grouped, fillvalue=[])]
    return updates


def check_every_sample_once(ranks: list[Any], name: str, size: int) -> None:
    """In every epoch, every sample went to one rank, once."""
    for epoch in zip(*(rank[name]["epochs"] for rank in ranks), strict=True):
        assert sorted(index for batches in epoch for batch in batches for index in batch) == list(range(size))


def check_alike(ranks: list[Any], name: str, *keys: str) -> None:
    """All ranks ended with the same."""
    for key in ("weights", *keys):
        assert all(rank[name][key] == ranks[0][name][key] for rank in ranks), key
    assert all(rank[name]["replicas_identical"] is not False for rank in ranks)


def check_all_leave_with_rank_0(ranks: list[Any]) -> None:
    """Rank 0 stops at its second step: in the first epoch, unless the others have left it but one batch of that."""
    steps = list(accumulate(len(batches) for batches in ranks[0]["left"]["epochs"]))
    assert steps[-1] >= 2
    assert not steps[:-1] or steps[-2] < 2
    assert {len(rank["left"]["epochs"]) for rank in ranks} == {len(steps)}


def one_of(folder: Path, pattern: str, *, last: bool) -> Path:
    """The first or the last of the checkpoints there, by the number at the end of their names."""
    found = sorted(folder.glob(pattern), key=lambda path: int(re.findall(r"\d+", path.name)[-1]))
    return found[-last]


def check_rest_of_epoch(ranks: list[Any], name: str, size: int, state: Mapping[str, Any]) -> None:
    """The run went on in the middle of its first epoch: what was left is dealt, then a whole one."""
    learnt, updates = (int(state["progress"][key]) for key in ("samples", "updates"))
    rest, following = ([b for rank in ranks for b in rank[f"{name} rest"]["epochs"][n]] for n in (0, 1))
    assert learnt + sum(map(len, rest)) == size
    assert sorted(index for batch in following for index in batch) == list(range(size))
    if name == "pace":
        return  # how its updates were made up cannot be told
    done = updates_of_sync(ranks, "sync whole")[:updates] + updates_of_sync(ranks, f"{name} rest")
    assert sorted(index for update in done for batch in update for index in batch) == sorted([*range(size)] * 2)
    close(torch.tensor(ranks[0][f"{name} rest"]["weights"]), on_one_machine(size, done, sgd))
