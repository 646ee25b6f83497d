"""`ownpace.join` with an algorithm of one's own."""

from __future__ import annotations

import pytest
import torch

import ownpace
from ownpace.algorithms.sync import SyncSgd

OWN = """
from dataclasses import dataclass
import ownpace

@dataclass(frozen=True, kw_only=True)
class Patient(ownpace.Algorithm):
    times: int = 1

    async def worker(self, me):
        while me.training:
            await ownpace.accumulate_and_step(me, self.times * me.batch_size)
"""


def test_it_is_taken_from_a_file(tmp_path, capsys) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    model = torch.nn.Linear(2, 1)
    with ownpace.join(f"{tmp_path}/mine.py:Patient", parameters={"times": "3"}) as fleet:
        wrapped, optimizer = fleet.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for (x,) in fleet.batches(torch.utils.data.TensorDataset(torch.ones(24, 2)), batch_size=4, epochs=1):
            wrapped(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert (fleet.samples, fleet.updates) == (24, 2)
    assert "ownpace: Patient on 1 worker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "parameters", "said"),
    [
        (SyncSgd, None, "algorithm is the class SyncSgd; give an instance"),
        (SyncSgd(), {"steps": 2}, "already made; give them to SyncSgd"),
        (3, None, "algorithm is 3; it must be"),
        ("mine.py", None, "there is no file"),
        ("snyc", None, "did you mean 'sync'"),
        ("backup", {"backups": 2}, "backups is 2, but there are 1 workers"),
        ("grouping", {"data": "shares"}, "data is 'shares', but a script's data is dealt out by its own loop"),
    ],
)
def test_what_is_no_algorithm_is_refused_in_a_line(given, parameters, said) -> None:
    with pytest.raises(ownpace.InputError, match=said):
        ownpace.join(given, parameters=parameters)
