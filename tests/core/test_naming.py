"""Names: what may be one, whatever anybody sends."""

from __future__ import annotations

import math
import re
import unicodedata

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbx_wire import identity as wire
from mbxd.core import addressing, agentnames, naming
from mbxd.core.rejected import Rejected
from mbxd.core.state import NO_PROJECT, State
from mbxd.core.times import iso

GOOD = ("ab", "a1", "0-", "a--b", "shop-backend", "a" * 40, "1234567890123456", "ownership")
BAD = (
    *(
        "",
        "a",
        "A",
        "Ab",
        "-a",
        "a" * 41,
        "a_b",
        "a b",
        "a.b",
        "a/b",
        "../x",
        "ab\n",
        "ab\r\n",
        "\nab",
        "ab\x00",
        " ab",
        "ab ",
    ),
    *("shop-backénd", unicodedata.normalize("NFD", "shop-backénd"), "\u0430dmin", "shop-\u0661", "shop\u2010backend"),
    *("ｓｈｏｐ", "shop-\u200bx", "\u202eshop", "ß" * 3, "\ud800x", "shop-\U0001f600"),
)
HEX = ("claude-0a1b2c3d4e5f", "x-550e8400e29b41d4a716446655440000", "shop-backend-abcdef123456")


@pytest.mark.parametrize("name", GOOD)
def test_good_addresses(name: str) -> None:
    assert naming.check_address(name) == name
    assert naming.is_address(name)


@pytest.mark.parametrize("name", [*BAD, *HEX, *sorted(naming.RESERVED)])
def test_bad_addresses_come_with_a_good_example(name: str) -> None:
    assert not naming.is_address(name)
    with pytest.raises(Rejected) as caught:
        naming.check_address(name)
    refusal = caught.value
    assert refusal.code == "NAME_INVALID"
    assert (refusal.message + refusal.hint).isascii()
    assert (refusal.message + refusal.hint).isprintable()
    examples = re.findall(r'example "?([a-z0-9-]+)"?', refusal.hint)
    assert examples
    assert all(naming.is_address(example) for example in examples)


def test_nobody_is_called_as_the_person_or_the_daemon() -> None:
    for sender in (addressing.OWNER, addressing.SYSTEM):
        name = addressing.name_of(State(), sender, NO_PROJECT)
        assert name in naming.RESERVED
        for spelling in (name, name.upper(), name.capitalize(), f" {name} "):
            with pytest.raises(Rejected, match="reserved") as caught:
                agentnames.check_name(spelling, "codex", "five", strict=False)
            assert caught.value.code == "NAME_INVALID"
        # What is no name of itself may become one as an address.
        for near in (f"{name}.", f"-{name}", f"{name.upper()}_"):
            assert agentnames.address_for(State(), near, "shop") == f"{name}-agent"


@pytest.mark.parametrize(
    "name", ["a-abcdefabcdef", "a-123456789012", "a-0a1b2c3d4e5", "a-0a1b2c3d4e5g", "0a1b2c3d4e5f", "a-0a1b2c3d4e5f-x"]
)
def test_only_long_mixed_hexadecimal_tails_are_refused(name: str) -> None:
    assert naming.is_address(name)


@given(st.text(max_size=50))
def test_a_name_is_good_or_refused_in_plain_words(name: str) -> None:
    if naming.is_address(name):
        assert naming.check_address(name) == name
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]{1,39}", name, re.ASCII)
        return
    with pytest.raises(Rejected) as caught:
        naming.check_address(name)
    assert caught.value.message.isascii()
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 800, "60 characters, escaped"


@given(st.from_regex(r"[a-zA-Z0-9_ -]{0,45}", fullmatch=True))
def test_the_schemas_pattern_and_the_rule_agree(name: str) -> None:
    fits = jsonschema.Draft202012Validator({"pattern": wire.ADDRESS_PATTERN}).is_valid(name)
    assert naming.is_address(name) == (fits and name not in naming.RESERVED and not naming._HEX_TAIL.search(name))


@pytest.mark.parametrize("role", ["a", "qa", "0", "back end", "back_end-2", "a" * 40])
def test_good_roles(role: str) -> None:
    assert naming.check_role(role) == role


@pytest.mark.parametrize(
    "role", ["", " a", "-a", "_", "QA", "Back End!", "a" * 41, "a\n", "r\u00f4le", "\u0661", "\x00", "\ud800"]
)
def test_bad_roles_come_with_their_lower_case_form(role: str) -> None:
    with pytest.raises(Rejected) as caught:
        naming.check_role(role)
    assert caught.value.code == "ROLE_INVALID"
    example = re.search(r'example "([^"]+)"', caught.value.hint)
    assert example is not None
    assert naming.check_role(example.group(1))
    if role in {"QA", "Back End!"}:
        assert example.group(1) == role.lower().strip("!")


@pytest.mark.parametrize("text", ["", "Owns it", "x" * 200, "é" * 200, "\U0001f600", "a\u00a0b"])
def test_good_descriptions(text: str) -> None:
    assert naming.check_description(text) == text


@pytest.mark.parametrize(
    "text", ["x" * 201, "a\nb", "a\rb", "\t", "\x00", "\x1b[0m", "\x7f", "\x85", "\u2028", "\ud800"]
)
def test_bad_descriptions(text: str) -> None:
    with pytest.raises(Rejected) as caught:
        naming.check_description(text)
    assert (caught.value.code, caught.value.data) == ("PARAMETER_INVALID", {"parameter": "description"})


@given(st.one_of(st.none(), st.text().map(naming.slug)), st.from_regex(naming._ROLE, fullmatch=True))
def test_the_conventional_name_is_always_an_address(slug: str | None, role: str) -> None:
    assert naming.is_address(naming.conventional(slug, role))


@given(st.text(max_size=80))
def test_suggestions_are_addresses(name: str) -> None:
    assert naming.is_address(naming.suggest(name))


@given(st.text(max_size=80))
def test_a_slug_is_short_and_plain(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9](-?[a-z0-9])*", naming.slug(text))
    assert len(naming.slug(text)) <= naming.SLUG_MAX


@given(st.from_regex(r"[a-z]{20,40}", fullmatch=True), st.integers(0, 120))
def test_a_variant_is_free_and_no_longer(wanted: str, clashes: int) -> None:
    taken: set[str] = set()
    for _ in range(clashes):
        taken.add(naming.free_variant(wanted, taken))
    assert len(taken) == clashes
    assert all(len(name) <= 40 for name in taken)


def test_near_names_leave_the_projects_prefix_out() -> None:
    others = ["shop-backend", "shop-frontend", "shop-qa", "tester"]
    assert naming.near("shop-bakend", others, "shop") == ["shop-backend"]
    assert naming.near("bakend", others, "shop") == ["shop-backend"]
    assert naming.near("shop-zebra", others, "shop") == []
    assert naming.near("anything", [], None) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (-0.001, "1969-12-31T23:59:59.999Z"),
        (1_769_860_800.1239, "2026-01-31T12:00:00.123Z"),
        (253_402_300_799.0, "9999-12-31T23:59:59.000Z"),
        (-62_135_596_800.0, "0001-01-01T00:00:00.000Z"),
        (-50_000_000_000.0, "0385-07-25T07:06:40.000Z"),
        *((wild, "1970-01-01T00:00:00.000Z") for wild in (1e300, -1e300, 1e18, math.nan, math.inf, -math.inf)),
    ],
)
def test_times_never_fail(seconds: float, text: str) -> None:
    assert iso(seconds) == text


@given(st.floats())
def test_every_time_has_one_form(seconds: float) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", iso(seconds))
