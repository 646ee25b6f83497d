"""`auto` as the algorithm of a run."""

from __future__ import annotations

import json

import pytest

import ownpace
from ownpace.auto import Chosen
from ownpace.core.contract.errors import InputError
from ownpace.testing.blobs import Blobs


def test_a_choice_becomes_the_runs_and_keeps_the_rate_that_was_asked_for() -> None:
    chosen = Chosen("stride", {"steps": 4}, 0.25, "why")
    assert Chosen.from_json(chosen.to_json()) == chosen
    given = ownpace.Config(algorithm="auto", lr=0.5)
    for keep_lr, lr in ((True, 0.5), (False, 0.25)):
        config = chosen.config(given, keep_lr=keep_lr)
        assert (config.algorithm, config.parameters, config.lr) == ("stride", {"steps": 4}, lr)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"parameters": {"steps": 4}}, "auto chooses the algorithm itself"),
        ({"resume": "runs/first"}, "keeps the algorithm it has"),
    ],
)
def test_what_cannot_go_with_it_is_refused(given, words) -> None:
    with pytest.raises(InputError, match=words):
        ownpace.train(algorithm="auto", task=Blobs(), fleet="4,1", **given)
    if "parameters" in given:
        with pytest.raises(InputError, match=words):
            ownpace.join("auto", **given)


@pytest.mark.slow
def test_it_plans_goes_and_leaves_its_choice_in_the_runs_folder(tmp_path, capsys) -> None:
    fleet = ownpace.Fleet(machine=(ownpace.Machine(samples_per_s=4000, count=3), ownpace.Machine(samples_per_s=50)))
    result = ownpace.train(algorithm="auto", task=Blobs(), fleet=fleet, epochs=3, out=tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["algorithm"] not in ("auto", "sync")
    said = capsys.readouterr().err
    assert f"auto: Take {saved['algorithm']}" in said
    assert result.summary.samples > 0
