from __future__ import annotations

import io
import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from mbxctl.failure import Failure
from mbxctl.render import Output, ago, columns, duration, neutralise


def output(*, json_mode: bool = False) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Output(json=json_mode, stdout=out, stderr=err), out, err


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_nothing_that_steers_a_terminal_survives(text: str) -> None:
    safe = neutralise(text)
    for char in safe:
        assert unicodedata.category(char) not in {"Cc", "Zl", "Zp", "Cs"}
        assert unicodedata.category(char) != "Cf" or char in "\u200c\u200d"
        assert unicodedata.bidirectional(char) not in {
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        }
    safe.encode()  # no lone surrogates


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "M"])))
def test_printable_text_is_left_as_it_is(text: str) -> None:
    assert neutralise(text) == text


def test_what_was_there_stays_readable() -> None:
    assert neutralise("a\x1b]52;c;x\x07b\u2028c\u202ed\x7f\x9b") == r"a\x1b]52;c;x\x07b\u2028c\u202ed\x7f\x9b"
    assert neutralise("\U000e0041") == r"\U000e0041"


@given(
    st.text(alphabet=st.characters(exclude_categories=())),
    st.text(alphabet=st.characters(exclude_categories=())),
)
def test_every_way_out_is_one_harmless_line(data: str, talk: str) -> None:
    out, stdout, stderr = output()
    out.data(data)
    out.talk(talk)
    for stream in (stdout, stderr):
        assert len(stream.getvalue().splitlines()) == 1


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_json_keeps_the_characters_in_ascii(text: str) -> None:
    out, stdout, _ = output(json_mode=True)
    out.document({"role": text})
    assert stdout.getvalue().isascii()
    assert json.loads(stdout.getvalue()) == json.loads(json.dumps({"role": text}))


@given(st.lists(st.lists(st.text(max_size=12), min_size=3, max_size=3), max_size=6))
def test_columns_are_one_line_a_row(rows: list[list[str]]) -> None:
    lines = columns(("A", "B", "C"), rows)
    assert len(lines) == len(rows) + 1
    assert all(line == line.rstrip() and len(line.splitlines()) == 1 for line in lines)


def test_data_is_dropped_under_json_and_talk_is_not() -> None:
    out, stdout, stderr = output(json_mode=True)
    out.data("a line")
    out.talk("a hint")
    assert (stdout.getvalue(), stderr.getvalue()) == ("", "a hint\n")


def test_a_failure_says_what_and_what_next() -> None:
    out, stdout, stderr = output()
    assert out.failure(Failure("NAME_TAKEN", "x is taken\x1b[2J", "take y")) == 4
    assert stdout.getvalue() == ""
    assert stderr.getvalue() == "error: x is taken\\x1b[2J [NAME_TAKEN]\nhint: take y\n"


def test_a_failure_under_json_is_the_wire_object() -> None:
    out, stdout, stderr = output(json_mode=True)
    assert out.failure(Failure("UNKNOWN_IDENTITY", "no such", "list", data={"near": []}, extra={"pid": None})) == 3
    assert json.loads(stdout.getvalue()) == {
        "pid": None,
        "error": {
            "code": "UNKNOWN_IDENTITY",
            "message": "no such",
            "hint": "list",
            "retryable": False,
            "data": {"near": []},
        },
    }
    assert stderr.getvalue() == ""


def test_lengths_of_time() -> None:
    given = (-1, 0.25, 12, 119, 600, 7200, 200_000)
    assert [duration(s) for s in given] == ["0.0 s", "0.2 s", "12 s", "119 s", "10 min", "2 h", "2 d"]


def test_an_unreadable_time_is_shown_as_it_is() -> None:
    assert ago("soon") == "soon"
    assert ago(None) == "-"
    assert ago("2020-01-01T00:00:00.000Z").endswith(" d ago")
