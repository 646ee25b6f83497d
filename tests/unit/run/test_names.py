"""Names of the user's own things, and back."""

from __future__ import annotations

import pytest

from ownpace.algorithms.stale import StaleSgd
from ownpace.core.contract.errors import InputError
from ownpace.run.names import CannotBeNamedError, algorithm_of, name_of, recipe_of
from ownpace.run.saved import label


def test_a_class_is_named_by_where_it_is_imported_from():
    assert name_of(StaleSgd) == "ownpace.algorithms.stale:StaleSgd"
    assert recipe_of(StaleSgd(staleness=4)) == (
        "ownpace.algorithms.stale:StaleSgd",
        {"staleness": 4, "by_layer": False},
    )


def test_a_name_that_leads_elsewhere_is_no_name(monkeypatch):
    class Other(StaleSgd):
        pass

    Other.__module__, Other.__qualname__ = StaleSgd.__module__, StaleSgd.__qualname__
    with pytest.raises(CannotBeNamedError, match="is something else"):
        name_of(Other)
    with pytest.raises(CannotBeNamedError, match="neither a class nor a function"):
        name_of(3)


@pytest.mark.parametrize("name", [":Class", "ownpace.algorithms.stale:", "ownpace.algorithms:stale.Nobody"])
def test_half_a_name_is_refused(name):
    with pytest.raises(InputError, match="cannot be imported"):
        algorithm_of(name, {})


def test_a_class_without_fields_is_made_without_arguments(tmp_path, monkeypatch):
    source = (
        "from ownpace.algorithms.sync import SyncSgd\nclass Mine(SyncSgd):\n    pass\nclass Not(Exception):\n    pass\n"
    )
    (tmp_path / "one_of_mine.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert label(algorithm_of("one_of_mine:Mine", {})) == "Mine"
    with pytest.raises(InputError, match="must be a class derived from Algorithm"):
        algorithm_of("one_of_mine:Not", {})


def test_labels_are_short():
    assert label(StaleSgd()) == label("ownpace.algorithms.stale:StaleSgd") == "StaleSgd"
    assert label("dc-async") == "dc-async"
