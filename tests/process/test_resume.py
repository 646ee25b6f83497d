"""Runs on processes that are killed or asked to end, and go on."""

from __future__ import annotations

import signal

import pytest
from tests.process import started
from tests.process.started import Start, Started, until

from ownpace import Config, execute, train
from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import Generation
from ownpace.run.checkpoints import Checkpoints, samples_of
from ownpace.run.standing import standing_of

# Two workers: a sum of two is the same whoever took which part of the data, so their run is the same each time.
WORDS = "--algorithm sync --momentum 0.9 --samples 10000 --checkpoint-every 2000 --eval-every 2500"
CONFIG = Config(
    algorithm="sync", engine="process", fleet="x2", momentum=0.9, samples=10_000, checkpoint_every=2000, eval_every=2500
)


def newest(run: Started) -> int:
    return max((samples_of(path) for path in Checkpoints(run.out).newest_first()), default=0)


def until_newer(run: Started, than: int) -> int:
    def has_come() -> bool:
        assert run.process.poll() is None, run.stderr
        return newest(run) > than

    until(has_come, "a checkpoint is written")
    return newest(run)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_then_asked_to_end_it_still_is_the_same_run(start: Start, tmp_path):
    # Paces only so that it lasts: they decide nothing else here.
    run = start(started.launcher(*WORDS.split(), fleet="1,1"))
    killed_at = until_newer(run, 0)
    run.process.kill()
    run.ends()
    assert not (run.out / "model.safetensors").exists()

    again = start(started.train("--resume", "out"))
    before = until_newer(again, killed_at)
    again.process.send_signal(signal.SIGTERM)
    assert again.ends() == 130
    last = newest(again)
    assert last > before
    assert again.hint == f"ownpace: go on from sample {last:,} with: ownpace train --resume out"
    assert standing_of(run.out).can_go_on
    assert (run.out / "model.safetensors").exists()

    result = train(resume=run.out, fleet="x2")
    whole = execute(CONFIG, tmp_path / "whole")
    assert (run.out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    for name in ("reason", "samples", "updates", "accuracy", "best_accuracy", "update_samples", "replicas_identical"):
        assert getattr(result.summary, name) == getattr(whole.summary, name), name
    events = list(read_events(run.out / "events.jsonl"))
    numbers = [event.number for event in events if isinstance(event, Generation)]
    assert numbers == list(range(2, 2 + len(numbers)))
    assert [event.kind for event in events if event.kind in ("run", "end")] == ["run", "end"]
    assert (events[0].kind, events[-1].kind) == ("run", "end")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("algorithm", ["sync", "local"])
def test_a_large_model_goes_on_with_what_went_through_memory(algorithm, tmp_path):
    """`local`: each worker has an optimizer of its own."""
    train(
        algorithm=algorithm, task="tests.process.wide:Wide", engine="process", fleet="x2", sampling="shards",
        batch_size=8, samples=320, lr=0.05, momentum=0.9, checkpoint_every=64, out=tmp_path / "whole",
    )  # fmt: skip
    older, _ = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    train(resume=older, out=tmp_path / "again")
    whole, again = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "again"))
    assert whole == again
