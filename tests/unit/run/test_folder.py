"""The files of a run: nothing of the user's is destroyed, and an earlier run stays until the new one has begun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.limits import largest_file

from ownpace import Config, InputError, execute
from ownpace.core.contract.errors import NotWritten
from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import Detail, End
from ownpace.engines import ENGINES
from ownpace.report import summarize
from ownpace.run.folder import RunFolder
from ownpace.run.place import check_comparison

SHORT = Config(task="quadratic", samples=200)
BAD = Config(task="quadratic", samples=200, fleet="2,1", algorithm="grouping", parameters={"groups": "0,1/2,3"})
"""Which only its worker can see."""
OURS = ("config.json", "events.jsonl", "model.safetensors", "summary.json")


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "summary.json",
        "events.jsonl",
        "events.3.jsonl",
        "figure.png",
        "config.json",
        "checkpoints/a",
    ],
)
def test_files_of_the_user_are_in_the_way_and_stay(tmp_path, name, overwrite):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b'{"format": 1}')
    with pytest.raises(InputError, match=f"{name.split('/')[0]} is in the way: no run of ownpace wrote it"):
        execute(SHORT, tmp_path, overwrite=overwrite)
    assert content(tmp_path) == {name: b'{"format": 1}'}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "events.jsonl", "figure.png", "checkpoints"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_stands_in_the_place_of_a_file_is_refused(tmp_path, name, kind, overwrite):
    folder = tmp_path / "r"
    folder.mkdir()
    (tmp_path / "precious").mkdir()
    match kind:
        case "link":
            (folder / name).symlink_to(tmp_path / "precious")
        case "folder" if name != "checkpoints":
            (folder / name).mkdir()
        case _:
            os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name} is (a link|a folder|not a plain file), where a run keeps its own"):
        execute(SHORT, folder, overwrite=overwrite)
    assert [path.name for path in folder.iterdir()] == [name]


def test_places_that_are_none_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for path, words in [
        (Path("/"), "the root of all folders"),
        (tmp_path / ".." / ".." / ".." / ".." / ".." / ".." / "..", "the root of all folders"),
        (tmp_path / "file", "is a file; --out takes a folder"),
        (tmp_path / "file" / "in", "cannot be"),
        (tmp_path / "nowhere", "is a link to nothing"),
        (tmp_path / "round", "round"),
        (tmp_path / ("n" * 300), "File name too long"),
        (tmp_path / "nul\0", "null"),
        (Path("/proc/none"), "cannot be written"),
    ]:
        with pytest.raises(InputError, match=words) as caught:
            execute(SHORT, path)
        assert "\n" not in str(caught.value)


def test_an_earlier_run_is_replaced_when_the_new_one_has_begun(tmp_path):
    execute(SHORT, tmp_path, overwrite=True)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "figure.png").write_bytes(b"drawn from the first run")
    first = content(tmp_path)
    with pytest.raises(InputError, match="already holds a run"):
        execute(SHORT, tmp_path)
    assert content(tmp_path) == first
    result = execute(Config(task="quadratic", samples=200, seed=1), tmp_path, overwrite=True)
    assert set(content(tmp_path)) == {*OURS, "notes.txt"}
    assert Config.load(tmp_path).seed == 1
    assert summarize(read_events(tmp_path / "events.jsonl")) == result.summary


def test_a_run_that_does_not_begin_leaves_the_earlier_one(tmp_path, monkeypatch, caplog):
    execute(SHORT, tmp_path)
    first = content(tmp_path)
    seen: list[dict[str, bytes]] = []

    def interrupted(job, emit, on_progress):
        seen.append(content(tmp_path))
        raise KeyboardInterrupt

    def dead(job, emit, on_progress):
        outcome = real(job, lambda event: None, on_progress)
        emit(job.header("virtual", 1, 4, {"workers": ["worker-0"]}))
        sums = summarize_end(tmp_path)
        emit(End(0.0, "a machine died", sums, "machine-died"))
        return type(outcome)("a machine died", NotWritten("stands for any error"), {})

    real = ENGINES["virtual"]
    monkeypatch.setitem(ENGINES, "virtual", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute(SHORT, tmp_path, overwrite=True)
    assert first.items() <= seen[0].items()
    assert len(seen[0]) == len(first) + 2  # its description and its events wait beside
    assert content(tmp_path) == first
    monkeypatch.setitem(ENGINES, "virtual", dead)
    result = execute(SHORT, tmp_path, overwrite=True)
    assert result.folder is None
    assert "still holds the earlier run" in caplog.text
    assert content(tmp_path) == first
    monkeypatch.setitem(ENGINES, "virtual", real)
    with pytest.raises(InputError, match="there are 2 workers"):
        execute(BAD, tmp_path, overwrite=True)
    assert content(tmp_path) == first


def summarize_end(folder: Path):
    (end,) = (event for event in read_events(folder / "events.jsonl") if isinstance(event, End))
    return end.sums


def left_by_a_process_that_was_killed(code: str, run: Path) -> None:
    """Let a process begin to replace a run, and kill itself."""
    script = f"""
import os, signal, sys
from pathlib import Path
from ownpace import Config
from ownpace.run.folder import RunFolder
run = Path(sys.argv[1])
folder = RunFolder(run, overwrite=True)
folder.write_config(Config(task="quadratic", samples=300))
{code}
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script, str(run)], timeout=100, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_what_a_process_left_that_was_killed_is_removed_and_nothing_else(tmp_path):
    """Three runs are about to replace one: two were killed, into the folder of one of which the user has put a file."""
    execute(SHORT, tmp_path)
    left_by_a_process_that_was_killed("(next(run.glob('.new-*')) / 'mine.txt').write_text('mine')", tmp_path)
    left_by_a_process_that_was_killed("(next(run.glob('.new-*')) / '.config.json.0123abcd.part').touch()", tmp_path)
    living = RunFolder(tmp_path, overwrite=True)
    living.write_config(SHORT)
    (mine,) = tmp_path.glob(".new-*/mine.txt")
    with pytest.raises(InputError, match="has not ended: another process writes there"):
        execute(SHORT, tmp_path, overwrite=True)
    # The one of a process that lives is whole; of the other, what the user has put there.
    left = {path.name: sorted(each.name for each in path.iterdir()) for path in tmp_path.glob(".new-*")}
    assert left.pop(mine.parent.name) == ["mine.txt"]
    assert list(left.values()) == [["config.json", "events.jsonl"]]
    living.discard()
    execute(SHORT, tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.glob(".new-*")] == [mine.parent.name]


def test_what_was_being_written_when_a_process_was_killed_is_removed_with_the_run(tmp_path):
    execute(SHORT, tmp_path)
    (tmp_path / ".model.safetensors.0123abcd.part").touch()
    (tmp_path / ".mine.0123abcd.part").touch()
    execute(SHORT, tmp_path, overwrite=True)
    assert set(content(tmp_path)) == {*OURS, ".mine.0123abcd.part"}


def test_a_run_that_has_not_ended_cannot_be_replaced(tmp_path):
    """Its process would go on to write, into files that are not there any more, and over the new ones."""
    with RunFolder(tmp_path / "run", overwrite=False) as living:
        living.write_config(SHORT)
        before = content(tmp_path)
        with pytest.raises(InputError, match="has not ended: another process writes there; end that first, or choose"):
            execute(SHORT, tmp_path / "run", overwrite=True)
        assert content(tmp_path) == before
    execute(SHORT, tmp_path / "run", overwrite=True)


def test_a_folder_can_be_used_after_a_process_was_killed_while_its_files_took_their_places(tmp_path):
    execute(SHORT, tmp_path)
    # As `begin` does it: the earlier run is gone, and what marks the new one would have come last.
    moved = "[path.unlink() for path in run.iterdir() if path.is_file()]; (run / 'events.jsonl').touch()"
    left_by_a_process_that_was_killed(moved, tmp_path)
    execute(SHORT, tmp_path, overwrite=True)
    assert not list(tmp_path.glob(".new-*"))
    assert {name for name in content(tmp_path) if "/" not in name} >= set(OURS)


def test_what_was_begun_for_nothing_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for folder in ("new/inner/r", "empty", "mine"):
        with pytest.raises(InputError, match="there are 2 workers"):
            execute(BAD, tmp_path / folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "mine"]
    assert content(tmp_path) == {"mine/notes.txt": b"mine"}


def test_a_full_disk_stops_records_and_not_training(tmp_path, caplog):
    long = Config(algorithm="pace", task="digits", epochs=3, eval_every=2000)
    whole = execute(long, tmp_path / "whole")
    size = (tmp_path / "whole" / "events.jsonl").stat().st_size
    with largest_file(size // 2):
        result = execute(long, tmp_path / "full")
    assert result.summary == whole.summary
    assert isinstance(result.error, NotWritten)
    assert "lacks a part of the events (File too large)" in str(result.error)
    assert result.error.exit_code == 6
    full, other = (load_file(tmp_path / name / "model.safetensors") for name in ("full", "whole"))
    assert all(torch.equal(full[name], other[name]) for name in other)
    assert summarize(read_events(tmp_path / "full" / "events.jsonl")) == whole.summary
    assert json.loads((tmp_path / "full" / "summary.json").read_text())["accuracy"] == whole.summary.accuracy
    assert caplog.text.count("events cannot be written any more") == 1


def test_without_room_for_the_model_the_line_says_so(tmp_path):
    with largest_file(8_000):
        result = execute(Config(task="digits", samples=200), tmp_path)
    assert "lacks the model (" in str(result.error)
    assert str(result.error).endswith("make room, and run it again with --overwrite")
    assert not (tmp_path / "summary.json").exists()  # so that it does not pass for complete
    assert not (tmp_path / "model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []
    assert not any(isinstance(event, Detail) for event in read_events(tmp_path / "events.jsonl"))


def test_a_comparison_keeps_to_its_own_files(tmp_path):
    (tmp_path / "figure.png").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"figure.png is in the way"):
        check_comparison(tmp_path, overwrite=True)
    for foreign in ('{"runs": [1], "out": "r"}', '{"runs": [{"lap": 3}], "out": 1}', '{"runs": []}', "[]", "x"):
        (tmp_path / "comparison.json").write_text(foreign)
        with pytest.raises(InputError, match=r"comparison.json is in the way"):
            check_comparison(tmp_path, overwrite=True)
    (tmp_path / "comparison.json").write_text('{"runs": [{"algorithm": "sync", "engine": "virtual"}], "out": "r"}')
    with pytest.raises(InputError, match="already holds a comparison"):
        check_comparison(tmp_path, overwrite=False)
    assert check_comparison(tmp_path, overwrite=True)
