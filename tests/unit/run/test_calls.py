"""What Python programs call, and what they get."""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
from itertools import pairwise
from typing import Any

import pytest
import torch

import ownpace
from ownpace import Config, InputError
from ownpace.algorithms import DEFAULT
from ownpace.algorithms.sync import SyncSgd
from ownpace.core.contract.events import Evaluation, Run
from ownpace.engines.job import ProgressReport
from ownpace.run.history import MOST_ROWS, History
from ownpace.run.progress import COLUMNS, ProgressLine
from ownpace.tasks import Quadratic
from ownpace.testing.blobs import Blobs

SMALL: dict[str, Any] = {"task": Blobs(), "fleet": [2, 1], "batch_size": 8, "epochs": 2, "lr": 0.1}


def test_the_algorithm_needs_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ownpace.train("sync", **SMALL).summary.algorithm == "sync"
    assert ownpace.train(SyncSgd(), **SMALL).summary.algorithm == "SyncSgd"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["digits"], "train was given 'digits', which is a task; write task='digits'"),
        ([Quadratic()], r"write task=Quadratic\("),
        (["runs/first"], "unknown algorithm 'runs/first'"),
        ([Config()], r"ownpace.execute\(config\)"),
        ([[4, 2]], r"algorithm is \[4, 2\]; it must be a string or an Algorithm"),
        ([SyncSgd], r"algorithm is the class SyncSgd; give an instance: algorithm=SyncSgd\(…\)"),
        (["sync", "digits"], "train was given 'digits' without a name"),
    ],
)
def test_what_is_no_algorithm_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        ownpace.train(*given)


@pytest.mark.parametrize("seeds", [2, "0,1", [], [0, 0], ["a"]])
def test_seeds_are_a_list_with_each_once(seeds):
    with pytest.raises(InputError, match=r"give a list of at least one, each once, as in seeds=\[0, 1, 2\]"):
        ownpace.compare(["sync"], seeds=seeds, **SMALL)


def test_unknown_arguments_are_named():
    with pytest.raises(InputError, match="unknown argument 'algoritm'; did you mean 'algorithm'"):
        ownpace.train(algoritm="sync")  # type: ignore[call-arg]  # type checkers refuse it, too
    with pytest.raises(InputError, match="unknown argument 'seed'; did you mean 'seeds'"):
        ownpace.compare(["sync"], seed=1)


def test_editors_see_every_field_with_its_type_and_default_and_what_calls_add():
    more = {"out", "overwrite", "progress", "on_progress", "on_event"}
    config = inspect.signature(Config).parameters
    trained, compared = (inspect.signature(call).parameters for call in (ownpace.train, ownpace.compare))
    assert trained.keys() == {*config, *more, "resume"}
    assert compared.keys() == {*config, *more, "algorithms", "seeds"} - {"algorithm", "seed"}
    for name, parameter in config.items():
        assert trained[name].default == parameter.default
    by_name = inspect.Parameter.KEYWORD_ONLY
    assert [name for name, each in (*trained.items(), *compared.items()) if each.kind is not by_name] == [
        "algorithm", "algorithms",
    ]  # fmt: skip
    assert trained["micro_batch"].annotation == int | None


def test_a_result_has_its_model_its_history_and_a_table():
    before = torch.random.get_rng_state()
    result = ownpace.train(**SMALL)
    task = Blobs()
    # The very weights that were evaluated last, though nothing was written.
    assert task.score(result.model, task.test_samples()).loss == pytest.approx(result.summary.loss)
    assert result.model is result.model
    assert torch.equal(torch.random.get_rng_state(), before)
    first, last = result.history[0], result.history[-1]
    assert (first.samples, first.updates) == (0, 0)
    assert (last.loss, last.accuracy) == (result.summary.loss, result.summary.accuracy)
    assert last.time == pytest.approx(result.summary.seconds, rel=0.01)
    assert result.rows()[0].keys() == {"time", "samples", "updates", "loss", "accuracy"}
    assert result.summary.algorithm in str(result)
    assert max(map(len, str(result).splitlines())) <= 80
    with pytest.raises(InputError, match="events are kept in a run's folder only"):
        next(result.events)


def test_what_ends_a_run_early_has_what_had_come_out():
    def stop(event: object) -> None:
        if isinstance(event, Evaluation) and event.updates:
            raise KeyboardInterrupt

    with pytest.raises(ownpace.Interrupted) as caught:
        ownpace.train(**SMALL, on_event=stop)
    result = caught.value.result
    assert isinstance(result, ownpace.Result)
    assert 0 < result.history[-1].samples < 800
    assert len(list(result.model.parameters())) == 4


def test_time_alone_has_no_model():
    with pytest.raises(InputError, match="only time was simulated"):
        _ = ownpace.train(**SMALL, timing_only=True).model


def test_names_in_a_notebooks_table_are_escaped():
    odd = type("<b>x</b>", (SyncSgd,), {})
    html = ownpace.train(odd(), **SMALL)._repr_html_()
    assert "&lt;b&gt;x" in html
    assert "<b>" not in html


def test_a_run_of_the_past_is_the_same_result(tmp_path):
    made = ownpace.train("sync", task="quadratic", fleet=[2, 1], epochs=1, out=tmp_path / "run")
    again = ownpace.open_run(tmp_path / "run")
    assert (again.summary, again.wall_seconds) == (made.summary, made.wall_seconds)
    assert list(again.history) == list(made.history)
    assert str(again.model.state_dict()) == str(made.model.state_dict())
    assert isinstance(next(again.events), Run)
    own = ownpace.train("sync", **SMALL, out=tmp_path / "own")
    # Blobs can be imported, so its model can be made again; any other task that has such a model will do as well.
    for opened in (ownpace.open_run(tmp_path / "own"), ownpace.open_run(tmp_path / "own", task=Blobs())):
        assert str(opened.model.state_dict()) == str(own.model.state_dict())
    with pytest.raises(InputError, match="there is no event file"):
        ownpace.open_run(tmp_path)
    lines = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "run" / "events.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(InputError, match="has not ended"):
        ownpace.open_run(tmp_path / "run")


def test_a_comparison_has_all_runs_by_algorithm(tmp_path):
    heard: list[object] = []
    parameters = {"stale": {"staleness": 2}}
    made = ownpace.compare(
        ["sync", "stale"], seeds=[3, 4], parameters=parameters, out=tmp_path / "c", on_event=heard.append, **SMALL
    )
    assert [(run.summary.algorithm, run.summary.seed) for run in made.runs] == [
        ("sync", 3), ("sync", 4), ("stale", 3), ("stale", 4),
    ]  # fmt: skip
    assert made.results["stale"] is made.runs[2]
    assert sum(isinstance(event, Run) for event in heard) == 4
    assert {path.name for path in (tmp_path / "c").iterdir()} >= {"sync-3", "stale-4", "comparison.json"}
    assert Config.load(tmp_path / "c" / "stale-4", task="quadratic").parameters["staleness"] == 2
    assert len(json.loads((tmp_path / "c" / "comparison.json").read_text(encoding="utf-8"))["runs"]) == 4
    assert {(row["algorithm"], row["seed"]) for row in made.rows()} >= {("sync", 3), ("stale", 4)}
    assert made.table in str(made)
    assert "stale" in made._repr_html_()
    with pytest.raises(InputError, match="already holds a comparison"):
        ownpace.compare(["sync", "stale"], seeds=[3, 4], out=tmp_path / "c", **SMALL)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithms": []}, "name at least one"),
        ({"algorithms": ["sync", "sync"]}, "each once"),
        ({"algorithms": ["sync"], "parameters": {"stale": {}}}, "unknown algorithm in parameters: 'stale'"),
        ({"algorithms": ["sync", "snyc"]}, "unknown algorithm 'snyc'"),
    ],
)
def test_comparisons_that_cannot_be_made_are_refused_before_anything_runs(given, message):
    heard: list[object] = []
    with pytest.raises(InputError, match=message):
        ownpace.compare(**given, **SMALL, on_event=heard.append)
    assert not heard


def test_one_that_diverges_is_among_the_results():
    made = ownpace.compare("sync, async", task="quadratic", fleet=[2, 1], epochs=4, lr=1e12)
    assert all(run.error is not None for run in made.results.values())
    assert list(made.results) == ["sync", "async"]


def test_figures_are_in_memory_and_in_files(tmp_path):
    made = ownpace.train(**SMALL)
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(InputError, match=r"ownpace\[plot\]"):
            made.plot()
    else:
        figure = made.plot(tmp_path / "f.svg")
        assert vars(figure)["_repr_png_"]().startswith(b"\x89PNG")  # as notebooks ask for it
        assert (tmp_path / "f.svg").stat().st_size > 1000


def test_data_frames_need_pandas(monkeypatch):
    made = ownpace.train(**SMALL)
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(InputError, match="pip install pandas"):
            made.to_dataframe()
    else:
        assert len(made.to_dataframe()) == len(made.history)


def test_the_history_of_a_long_run_stays_small():
    history = History()
    for number in range(5 * MOST_ROWS):
        history.take(Evaluation(t=float(number), samples=number, updates=number, loss=1.0, accuracy=None))
        assert len(history) <= MOST_ROWS + 1
    assert history[-1].samples == 5 * MOST_ROWS - 1
    assert {b.samples - a.samples for a, b in pairwise(history[:-1])} == {8}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Unread(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("live", [True, False])
def test_progress_that_nobody_reads_ends_no_run(live, monkeypatch):
    line = ProgressLine(Unread(), live=live, every_s=0.0)
    monkeypatch.setattr("ownpace.run.watching.progress_line", lambda wanted: line)
    assert ownpace.train(**SMALL).summary.updates


@pytest.mark.parametrize("live", [True, False])
def test_progress_is_a_line_written_anew_or_a_few_that_stay(live, monkeypatch):
    stream = io.StringIO()
    line = ProgressLine(stream, live=live, every_s=5.0, clock=Clock())
    monkeypatch.setattr("ownpace.run.watching.progress_line", lambda wanted: line)
    reports: list[object] = []
    ownpace.train(**SMALL | {"epochs": 10}, on_progress=reports.append)
    assert reports
    shown = stream.getvalue()
    assert f"{DEFAULT}:" in shown
    assert "samples/s" in shown
    if live:
        assert "\n" not in shown
        assert shown.endswith("\r" + " " * COLUMNS + "\r")
        assert {len(each) for each in shown.split("\r")} <= {0, COLUMNS}
    else:
        assert "\r" not in shown
        # Every fifth look at the clock.
        assert 0 < len(shown.splitlines()) <= len(reports) // 4


def test_short_runs_say_nothing_where_lines_stay():
    stream = io.StringIO()
    line = ProgressLine(stream, live=False, every_s=1e9, clock=Clock())
    line.on_start(Config(**SMALL).job())
    line.on_progress(ProgressReport(samples=10, seconds=1.0))
    line.close()
    assert stream.getvalue() == ""


def test_silence_when_told(capfd):
    ownpace.train(**SMALL, progress=False)
    assert capfd.readouterr() == ("", "")
