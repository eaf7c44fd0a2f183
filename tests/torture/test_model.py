"""The model accepts what can be explained and refuses what can't: histories that must pass, and that must fail."""

from __future__ import annotations

import random
from itertools import islice
from math import inf
from typing import Any

import pytest

from tests.torture import plan
from tests.torture.__main__ import _numbers, _spans
from tests.torture.history import Fault, History, Op, Row
from tests.torture.model import SETTLE, judge
from tests.torture.running import shrink

GRACE = 60.0


def op(session: str, what: str, sent: float, done: float = inf, **said: Any) -> Op:
    """A request, answered with success unless it says otherwise. Its host is the session, its shim `<session>:0`."""
    answered = done < inf and "code" not in said
    return Op(session, session, said.pop("shim", f"{session}:0"), what, sent, done=done, ok=answered, **said)


def claim(session: str, epoch: int, sent: float, done: float = inf, name: str = "shop", **said: Any) -> Op:
    return op(session, "claim", sent, done, name=name, epoch=epoch, **said)


def send(session: str, token: str, sent: float, done: float = inf, **said: Any) -> Op:
    return op(session, "send", sent, done, token=token, **{"id": token, "to": ("shop",), **said})


def row(holder: str, state: str = "live", *, claimable: bool = False) -> Row:
    return Row("shop", state, holder, claimable, "" if claimable else "IDENTITY_IN_USE")


def wrong(*found: Op | Fault) -> list[str]:
    ops = [one for one in found if isinstance(one, Op)]
    faults = [one for one in found if isinstance(one, Fault)]
    return judge(History(GRACE, ops, faults))


HELD = claim("a", 1, 0, 1)

EXPLAINED: dict[str, tuple[Op | Fault, ...]] = {
    "nothing": (),
    "a claim, a release, another's claim": (HELD, op("a", "release", 2, 3, released="shop"), claim("b", 2, 4, 5)),
    "a claim while the release is under way": (HELD, op("a", "release", 2, 6, released="shop"), claim("b", 2, 3, 4)),
    "a release whose answer was lost happened": (HELD, op("a", "release", 2), claim("b", 2, 4, 5)),
    "a release whose answer was lost did not happen": (HELD, op("a", "release", 2, lost=3), claim("a", 1, 4, 5)),
    "a claim whose answer was lost happened": (
        claim("a", 0, 0, lost=1),
        claim("b", 2, 5, 6, code="IDENTITY_IN_USE", holder="a"),
    ),
    "a claim whose answer was lost did not happen": (claim("a", 0, 0, lost=1), claim("b", 1, 5, 6)),
    "the same grant twice": (HELD, claim("a", 1, 2, 3)),
    "a killed holder": (HELD, Fault("host", "a", 2), claim("b", 2, 2.5, 3)),
    "a killed holder that is not yet seen to be": (
        HELD,
        Fault("host", "a", 2),
        claim("b", 0, 2.5, 3, code="IDENTITY_IN_USE", holder="a"),
    ),
    "a detached holder after its grace": (HELD, Fault("shim", "a:0", 2), claim("b", 2, 63, 64)),
    "a holder that a person freed": (HELD, Fault("free", "shop", 2, 3), claim("b", 3, 4, 5)),
    "two claims at once": (claim("a", 1, 0, 5), claim("b", 0, 1, 4, code="IDENTITY_IN_USE", holder="a")),
    "a list": (HELD, op("a", "list", 2, 3, you=("shop", 1), rows=(row("a", claimable=True),))),
    "a list during a claim": (op("b", "list", 0, 2, rows=(row("a"),)), claim("a", 1, 1, 3)),
    "a conversation that goes on in another process": (
        claim("a", 1, 0, 1, handle="talk"),
        Fault("host", "a", 2),
        op("b", "inbox", 3, 4, handle="talk"),
        op("b", "list", 5, 6, you=("shop", 2), rows=(row("b", claimable=True),)),
    ),
    "a token takes what its maker holds for the time being": (
        op("a", "create", 0, 1, name="shop", epoch=1),
        op("b", "take", 2, 3, name="shop", epoch=2, shown=True),
    ),
    "a token needs no grace": (HELD, Fault("shim", "a:0", 2), op("b", "take", 3, 4, name="shop", epoch=2, shown=True)),
    "mail": (HELD, send("b", "t1", 2, 3), op("a", "inbox", 4, 5, tokens=("t1",))),
    "mail that was acked": (HELD, send("b", "t1", 2, 3), op("a", "ack", 4, 5, tokens=("t1",)), op("a", "inbox", 6, 7)),
    "an ack without an answer happened": (
        HELD,
        send("b", "t1", 2, 3),
        op("a", "ack", 4, tokens=("t1",)),
        op("a", "inbox", 6, 7),
    ),
    "an ack without an answer did not happen": (
        HELD,
        send("b", "t1", 2, 3),
        op("a", "ack", 4, tokens=("t1",)),
        op("a", "inbox", 6, 7, tokens=("t1",)),
    ),
    "a send without an answer happened": (HELD, send("b", "t1", 2), op("a", "inbox", 6, 7, tokens=("t1",))),
    "a send without an answer did not happen": (HELD, send("b", "t1", 2), op("a", "inbox", 6, 7)),
    "a send without an answer, repeated when others had sent": (
        send("b", "t1", 2, id="1", lost=3),
        send("c", "t2", 4, 5, id="2"),
        send("b", "t1", 6, 7, id="1"),
    ),
    "an act under an older epoch is refused": (
        HELD,
        op("a", "release", 2, 3, released="shop"),
        claim("a", 2, 4, 5),
        op("a", "stale", 6, 7, epoch=1, code="LEASE_LOST"),
    ),
}

FAULTY: dict[str, tuple[str, tuple[Op | Fault, ...]]] = {
    "a live holder displaced": ("displaced", (HELD, claim("b", 2, 2, 3))),
    "two holders, granted at once": ("hold shop", (claim("a", 1, 0, 2), claim("b", 2, 1, 3))),
    "a stopped shim displaced within the grace": (
        "displaced",
        (HELD, Fault("shim", "a:0", 2), claim("b", 2, 61, 61.9)),
    ),
    "a second shim keeps it": (
        "displaced",
        (HELD, claim("a", 1, 2, 3, shim="a:1"), Fault("shim", "a:0", 4), claim("b", 2, 99, 100)),
    ),
    "a free before the grant displaces nobody": (
        "displaced",
        (Fault("free", "shop", 0, 0.5), claim("a", 2, 1, 2), claim("b", 3, 3, 4)),
    ),
    "a token takes from a live holder": ("displaced", (HELD, op("b", "take", 2, 3, name="shop", epoch=2, shown=True))),
    "a token takes what its maker acted under": (
        "displaced",
        (
            op("a", "create", 0, 1, name="shop", epoch=1),
            op("a", "send", 2, 3, token="t", to=("shop",), id="t"),
            op("b", "take", 4, 5, name="shop", epoch=2, shown=True),
        ),
    ),
    "a provisional holder displaced without a token": (
        "displaced",
        (op("a", "create", 0, 1, name="shop", epoch=1), op("b", "take", 2, 3, name="shop", epoch=2)),
    ),
    "an epoch that falls": (
        "fell",
        (claim("a", 5, 0, 1), op("a", "release", 2, 3, released="shop"), claim("b", 4, 4, 5)),
    ),
    "an epoch given twice": ("given to", (HELD, op("a", "release", 2, 3, released="shop"), claim("b", 1, 4, 5))),
    "two identities of one session": ("held shop", (HELD, claim("a", 1, 2, 3, name="shop-b"))),
    "a claim of the dead": ("had ended", (Fault("host", "a", 1), claim("a", 1, 2 + SETTLE, 9))),
    "an acknowledged claim lost": ("its list says", (HELD, op("a", "list", 2, 3))),
    "an acknowledged claim shown as vacant": (
        "a list says vacant",
        (HELD, op("b", "list", 2, 3, rows=(row("", "vacant", claimable=True),))),
    ),
    "an attached holder shown as detached": ("attached", (HELD, op("b", "list", 2, 3, rows=(row("a", "detached"),)))),
    "a session that asks and is shown as detached": (
        "to itself",
        (HELD, op("a", "list", 2, 3, shim="a:1", you=("shop", 1), rows=(row("a", "detached", claimable=True),))),
    ),
    "a holder from nowhere": (
        "who can't hold it",
        (HELD, op("a", "release", 2, 3, released="shop"), op("b", "list", 4, 5, rows=(row("a"),))),
    ),
    "a name that nobody asked for": (
        "can't hold",
        (
            HELD,
            op("a", "release", 2, 3, released="shop"),
            op("a", "inbox", 4, 5),
            op("a", "list", 6, 7, you=("shop", 2)),
        ),
    ),
    "a dead holder for ever": (
        "who can't hold it",
        (HELD, Fault("host", "a", 2), op("b", "list", 9, 10, rows=(row("a"),))),
    ),
    "a live holder shown as claimable": (
        "claimable=True",
        (HELD, op("b", "list", 2, 3, rows=(row("a", claimable=True),))),
    ),
    "a free name refused": (
        "can't hold it",
        (HELD, op("a", "release", 2, 3, released="shop"), claim("b", 0, 4, 5, code="IDENTITY_IN_USE", holder="a")),
    ),
    "a holder told that it holds nothing": ("was told NOT_BOUND", (HELD, op("a", "send", 2, 3, code="NOT_BOUND"))),
    "a release that released nothing": ("released nothing", (HELD, op("a", "release", 2, 3))),
    "an act under an older epoch": (
        "acted under",
        (claim("a", 2, 0, 1), op("a", "stale", 2, 3, epoch=1, token="t", id="1")),
    ),
    "a list and a claim that disagree": (
        "and got IDENTITY_IN_USE",
        (claim("a", 0, 2, 3, listed="", calm=True, code="IDENTITY_IN_USE"),),
    ),
    "a claim that the list refused": ("and got it", (claim("a", 1, 2, 3, listed="RETIRED", calm=True),)),
    "an internal error": ("got RPC", (op("a", "claim", 0, 1, code="RPC -32603: internal"),)),
    "a repeat that did it again": ("another answer", (op("a", "repeat", 0, 1, same=False),)),
    "acknowledged mail lost": ("is missing", (HELD, send("b", "t1", 2, 3), op("a", "inbox", 4, 5))),
    "mail twice in a list": ("2 times", (HELD, send("b", "t1", 2, 3), op("a", "inbox", 4, 5, tokens=("t1", "t1")))),
    "mail sent twice": ("sent twice", (send("b", "t1", 2, 3), send("b", "t1", 4, 5, id="t2"))),
    "acked mail again": (
        "again",
        (HELD, send("b", "t1", 2, 3), op("a", "ack", 4, 5, tokens=("t1",)), op("a", "inbox", 6, 7, tokens=("t1",))),
    ),
    "seen mail lost though its send was not acknowledged": (
        "is missing",
        (HELD, send("b", "t1", 2), op("a", "inbox", 4, 5, tokens=("t1",)), op("a", "inbox", 6, 7)),
    ),
    "an ack without an answer undone": (
        "again",
        (
            HELD,
            send("b", "t1", 2, 3),
            op("a", "ack", 4, tokens=("t1",)),
            op("a", "inbox", 6, 7),
            op("a", "inbox", 8, 9, tokens=("t1",)),
        ),
    ),
    "mail that nobody sent": ("nobody sent", (HELD, op("a", "inbox", 2, 3, tokens=("t1",)))),
    "mail in somebody else's list": (
        "nobody sent",
        (HELD, send("b", "t1", 2, 3, to=("shop-b",)), op("a", "inbox", 4, 5, tokens=("t1",))),
    ),
    "ids that fall": ("not behind", (send("b", "t1", 2, 3, id="5"), send("b", "t2", 4, 5, id="4"))),
    "acked mail that is nowhere": ("is lost", (send("b", "t1", 2, 3), op("person", "everything", 4, 5, name="shop"))),
}


@pytest.mark.parametrize("case", EXPLAINED)
def test_what_can_be_explained_is_accepted(case: str) -> None:
    assert wrong(*EXPLAINED[case]) == []


@pytest.mark.parametrize("case", FAULTY)
def test_what_can_not_be_explained_is_told(case: str) -> None:
    words, found = FAULTY[case]
    told = wrong(*found)
    assert [text for text in told if words in text], told


def test_a_plan_is_its_seed() -> None:
    one, other = list(islice(plan.steps(7), 300)), list(islice(plan.steps(7), 200))
    assert one[:200] == other
    assert one != list(islice(plan.steps(8), 300))
    assert {step.what for step in islice(plan.steps(7), 3000)} == set(plan.WEIGHTS)
    assert plan.cast(7) == plan.cast(7)


@pytest.mark.parametrize("needed", [{17}, {3, 40}, {0, 1, 99}])
def test_shrinking_finds_what_is_needed(needed: set[int]) -> None:
    steps = list(islice(plan.steps(1), 100))
    runs = 0

    def fails(some: object) -> bool:
        nonlocal runs
        runs += 1
        assert isinstance(some, list)
        return needed <= {step.at for step in some}

    assert {step.at for step in shrink(steps, fails, inf)} == needed
    assert runs < 300


def test_shrinking_is_bounded() -> None:
    steps = list(islice(plan.steps(1), 100))
    assert shrink(steps, lambda some: random.random() < 2, -inf) == steps


def test_steps_to_drop_are_named_in_short() -> None:
    numbers = [0, 1, 2, 5, 7, 8]
    assert _spans(numbers) == "0-2,5,7-8"
    assert _numbers(_spans(numbers)) == numbers
    assert _numbers("") == []
