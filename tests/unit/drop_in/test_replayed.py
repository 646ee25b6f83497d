"""What is read from something iterable, and the marks by which ranks notice that they read different things."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ownpace.drop_in.digest import digest
from ownpace.drop_in.replayed import Replayed


def read(length: int, epochs: int, counts: list[int]) -> dict[str, str]:
    """The marks of that many items an epoch, read in pieces of these sizes; the last size again until all are read."""
    order = Replayed(lambda epoch: iter(range(100 * epoch, 100 * epoch + length)), epochs, lambda epoch: epoch)
    marks: dict[str, str] = {}
    place = 0
    order.first(2)
    while True:
        count = counts.pop(0) if len(counts) > 1 else counts[0]
        if len(items := order.at(place, count)) == 0:
            return marks | order.marks.take()
        place += len(items)
        marks |= order.marks.take()


@given(st.integers(1, 40), st.integers(1, 6), st.lists(st.integers(1, 50), min_size=1))
def test_marks_are_of_the_data_however_it_is_read(length, epochs, counts):
    items = [100 * epoch + item for epoch in range(epochs) for item in range(length)]
    powers = [2**power for power in range(9)]
    expected = {f"item {place}": digest(items[place - 1]) for place in powers if place <= len(items)}
    expected |= {f"the end of epoch {end}": f"after item {end * length}" for end in powers if end <= epochs}
    assert read(length, epochs, counts) == expected
