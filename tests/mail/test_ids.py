from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbxd.mail.ids import ALPHABET, LENGTH, Ids, canonical, decode, encode


@given(st.integers(0, (1 << 128) - 1))
def test_round_trip(value: int) -> None:
    text = encode(value)
    assert len(text) == LENGTH
    assert set(text) <= set(ALPHABET)
    assert decode(text) == value
    assert canonical(text) == text


@given(st.lists(st.tuples(st.floats(-10, 1e12), st.binary(min_size=10, max_size=10)), min_size=1, max_size=50))
def test_ids_rise_whatever_the_clock_does(draws: list[tuple[float, bytes]]) -> None:
    ids = Ids()
    made = [ids.make(now, entropy) for now, entropy in draws]
    assert made == sorted(set(made))


def test_an_id_begins_with_its_time_and_ends_with_its_entropy() -> None:
    ids = Ids()
    assert decode(ids.make(1.5, b"\1" * 10)) == 1500 << 80 | int.from_bytes(b"\1" * 10, "big")


def test_ids_go_on_behind_the_last_one() -> None:
    last = Ids().make(2_000_000.0, bytes(10))
    ids = Ids(last)
    assert decode(ids.make(1_000_000.0, bytes(10))) == decode(last) + 1
    ids.seen(Ids().make(3_000_000.0, bytes(10)))
    ids.seen("")
    assert ids.make(1.0, bytes(10)) > encode(3_000_000_000 << 80)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("01m8q9hek2", "01M8Q9HEK2"),
        (" 01M8Q9HE ", "01M8Q9HE"),
        ("oIL8Q9HE", "0118Q9HE"),
        ("01M8Q9H", None),
        ("01M8Q9HU", None),
        ("01M8Q9H%", None),
        ("0" * 27, None),
        ("", None),
        ("０１M8Q9HE", None),
    ],
)
def test_what_people_type(typed: str, meant: str | None) -> None:
    assert canonical(typed) == meant
