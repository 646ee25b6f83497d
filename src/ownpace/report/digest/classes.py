"""Which workers are alike, and which of them are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MOST_ROWS = 12


def classes_of(workers: Sequence[str], known: Mapping[str, str]) -> dict[str, list[str]]:
    """The workers by class: by what is known of their machines, or else by the names that they share.

    >>> classes_of(["new-0", "new-1", "old-0"], {})
    {'new': ['new-0', 'new-1'], 'old': ['old-0']}
    """
    classes: dict[str, list[str]] = {}
    for worker in workers:
        classes.setdefault(known.get(worker) or worker.rpartition("-")[0] or worker, []).append(worker)
    return classes


def chosen(classes: Mapping[str, Sequence[str]], most: int = MOST_ROWS) -> list[str]:
    """A few workers of every class, as many of each as there is room for; of many classes, those spread over all.

    >>> chosen({"new": ["new-0", "new-1", "new-2"], "old": ["old-0"]}, most=3)
    ['new-0', 'new-1', 'old-0']
    """
    names = list(classes)
    if len(names) > most:
        names = [names[at * len(names) // most] for at in range(most)]
    taken = dict.fromkeys(names, 0)
    room = most
    # In turns: a small class leaves its room to the others.
    while room and any(taken[name] < len(classes[name]) for name in names):
        for name in names:
            if room and taken[name] < len(classes[name]):
                taken[name] += 1
                room -= 1
    return [worker for name in names for worker in classes[name][: taken[name]]]
