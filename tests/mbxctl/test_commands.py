"""What each command asks, prints and exits with, against a scripted daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.mbxctl.conftest import Place
from tests.mbxctl.stub import HOLDER, TableDaemon, listing, refusal, row
from tests.support.stub_daemon import NOW

Serve = Callable[..., TableDaemon]

LIVE = row(state="live", reason="held", holder=HOLDER, claimable=False, claim_error="IDENTITY_IN_USE", unread=3)
GRANT = {
    "action": "claim",
    "identity": LIVE,
    "epoch": 7,
    "created": False,
    "resumed": False,
    "unread": 3,
    "inbox": [],
    "predecessor": {"client": "codex", "ended": NOW, "reason": "holder-exited", "task_description": None},
    "warnings": ["shop-backend belongs to project other"],
    "next": None,
}
CHANGED = {"identity": row(), "epoch": 8, "changed": True, "warnings": []}


def test_list_shows_one_aligned_row_an_identity(place: Place, serve: Serve) -> None:
    stub = serve(identity__list=listing(LIVE, row("GreenCastle", address="greencastle", role=None, project=None)))
    result = place.run("list")
    assert result.code == 0
    assert result.out.splitlines() == [
        "NAME          STATE   ROLE     PROJECT  HOLDER            UNREAD  LAST-ACTIVE",
        f"shop-backend  live    backend  shop     claude-code:4711  3       {NOW}",
        f"GreenCastle   vacant  -        -        -                 0       {NOW}",
    ]
    assert "2 identities in project shop, 1 vacant" in result.err
    assert stub.calls[-1] == ("identity.list", {})
    assert stub.hello["client"]["name"] == "mbxctl"
    assert stub.hello["project"] == {"key": "shop", "slug": "shop"}


def test_vacant_is_counted_by_state_whatever_the_caller_may_claim(place: Place, serve: Serve) -> None:
    mine = row("mine-1", state="live", claimable=True)
    needs_role = row("a-b", role=None, claimable=False, claim_error="ROLE_REQUIRED")
    while_holding = row("c-d", claimable=False, claim_error="HOLDS_ANOTHER")
    serve(identity__list=listing(mine, needs_role, while_holding, row("e-f", state="detached")))
    assert "4 identities in project shop, 2 vacant;" in place.run("list").err


def test_an_address_is_shown_where_the_name_is_not_enough(place: Place, serve: Serve) -> None:
    serve(identity__list=listing(row("GreenCastle", address="shop-greencastle")))
    assert place.run("list").out.splitlines()[1].startswith("shop-greencastle ")


def test_list_in_home_means_all(place: Place, serve: Serve) -> None:
    stub = serve(identity__list=listing(row(), project=None))
    result = place.run("list", cwd=place.home)
    assert stub.calls[-1] == ("identity.list", {"all": True})
    assert "no project here: showing the whole host" in result.err


@pytest.mark.parametrize("args", [("list", "--all"), ("--json", "list", "--all"), ("list", "--json", "--all")])
def test_list_all(place: Place, serve: Serve, args: tuple[str, ...]) -> None:
    stub = serve(identity__list=listing(row()))
    assert place.run(*args).code == 0
    assert stub.calls[-1] == ("identity.list", {"all": True})


def test_an_empty_list_says_what_to_do(place: Place, serve: Serve) -> None:
    serve(identity__list=listing())
    result = place.run("list")
    assert (result.code, result.out) == (0, "")
    assert "mbxctl register NAME --role ROLE" in result.err


def test_text_from_agents_cannot_steer_the_terminal(place: Place, serve: Serve) -> None:
    serve(identity__list=listing(row(role="x\x1b]52;c;eA==\x07\nfake-row", holder={**HOLDER, "client": "a\u202eb"})))
    plain = place.run("list")
    assert len(plain.out.splitlines()) == 2
    assert "\x1b" not in plain.out
    assert r"x\x1b]52;c;eA==\x07\x0afake-row" in plain.out
    assert r"a\u202eb:4711" in plain.out
    as_json = place.run("list", "--json")
    assert as_json.document["identities"][0]["role"] == "x\x1b]52;c;eA==\x07\nfake-row"
    assert as_json.out.isascii()


def test_a_c_locale_is_no_traceback(place: Place, serve: Serve) -> None:
    serve(identity__list=listing(row(role="café")))
    result = place.run("list", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.code == 0
    assert r"caf\xe9" in result.out


def test_show(place: Place, serve: Serve) -> None:
    stub = serve(identity__show={"identity": LIVE, "epoch": 7, "aliases": ["old-name"], "warnings": ["careful"]})
    result = place.run("show", "shop-backend")
    assert "holder:       claude-code, pid 4711, since " + NOW in result.out
    assert "state:        live (held)" in result.out
    assert "claimable:    no (IDENTITY_IN_USE)" in result.out
    assert "aliases:      old-name" in result.out
    assert "warning: careful" in result.err
    assert stub.calls[-1] == ("identity.show", {"name": "shop-backend"})


WHY = {
    "name": "shop-backend",
    "state": "detached",
    "reason": "detached",
    "rule": "the host process lives, no shim speaks for the session",
    "epoch": 7,
    "processes": [
        {
            "role": "host",
            "pid": 4711,
            "verdict": "alive",
            "reason": "pidfd-quiet",
            "means": "pidfd",
            "age_s": 0.2,
            "description": "claude",
        }
    ],
    "attached": False,
    "connections": 0,
    "detached_s": 12.0,
    "grace_s": 60.0,
    "last_call_age_s": 90.0,
    "options": ["wait 48 s", "mbxctl free shop-backend --reason TEXT"],
}


def test_why_tells_evidence_rule_and_options(place: Place, serve: Serve) -> None:
    serve(identity__why=WHY)
    assert place.run("why", "shop-backend").out.splitlines() == [
        "shop-backend is detached (detached), epoch 7",
        "rule: the host process lives, no shim speaks for the session",
        "evidence:",
        "  host pid 4711 claude: alive (pidfd-quiet), by pidfd, 0.2 s old",
        "session: not attached, 0 open connections",
        "last call: 90 s ago",
        "detached for: 12 s of 60 s grace",
        "you can: wait 48 s",
        "         mbxctl free shop-backend --reason TEXT",
    ]


ENTRY = {
    "seq": 9,
    "at": NOW,
    "what": "lost",
    "name": "a",
    "epoch": 2,
    "who": None,
    "pid": 12,
    "reason": "holder-exited",
}


def test_log(place: Place, serve: Serve) -> None:
    stub = serve(admin__log={"entries": [ENTRY], "truncated": True})
    result = place.run("log", "a", "--limit", "1")
    assert result.out.splitlines()[1].split() == ["9", NOW, "lost", "a", "2", "-", "12", "holder-exited"]
    assert "older entries" in result.err
    assert stub.calls[-1] == ("admin.log", {"name": "a", "limit": 1})


def test_stats(place: Place, serve: Serve) -> None:
    serve(admin__stats={"parts": {"engine": {"batches": 3}, "log": {"bytes": 10}}})
    assert place.run("stats").out.splitlines() == ["engine.batches 3", "log.bytes 10"]


def test_claim_sends_only_what_was_given(place: Place, serve: Serve) -> None:
    stub = serve(identity__claim=GRANT)
    result = place.run("claim")
    assert stub.calls[-1] == ("identity.claim", {})
    assert result.out == "claimed shop-backend (backend) in shop, epoch 7, 3 unread\n"
    assert "held before by codex" in result.err
    assert "warning: shop-backend belongs to project other" in result.err
    place.run("claim", "x-y", "--role", "r", "--description", "d")
    assert stub.calls[-1] == ("identity.claim", {"name": "x-y", "role": "r", "description": "d"})


def test_a_person_registers_a_vacant_mailbox(place: Place, serve: Serve) -> None:
    stub = serve(
        identity__register={
            **GRANT,
            "action": "register",
            "identity": row(),
            "created": True,
            "predecessor": None,
        }
    )
    result = place.run("register", "shop-backend", "--role", "backend")
    assert result.out.startswith("registered shop-backend (backend) in shop")
    assert "it is vacant" in result.err
    assert stub.calls[-1] == ("identity.register", {"name": "shop-backend", "role": "backend"})


def test_release(place: Place, serve: Serve) -> None:
    stub = serve(identity__release={"action": "release", "released": "a-b", "warnings": [], "next": None})
    assert place.run("release").out == "released a-b\n"
    stub.answers["identity.release"] = {"action": "release", "released": None, "warnings": [], "next": None}
    nothing = place.run("release")
    assert (nothing.code, nothing.out) == (0, "")


def test_free_needs_a_yes_where_nobody_can_be_asked(place: Place, serve: Serve) -> None:
    stub = serve(identity__show={"identity": LIVE, "epoch": 7, "aliases": [], "warnings": []}, admin__free=CHANGED)
    refused = place.run("free", "shop-backend", "--reason", "stuck")
    assert refused.code == 2
    assert "held by claude-code (pid 4711)" in refused.err
    assert "admin.free" not in stub.methods()
    done = place.run("free", "shop-backend", "--reason", "stuck", "--yes")
    assert (done.code, done.out) == (0, "freed shop-backend (backend) in shop, vacant, epoch 8\n")
    assert stub.calls[-1] == ("admin.free", {"name": "shop-backend", "reason": "stuck"})


def test_free_of_what_nobody_holds_needs_no_yes(place: Place, serve: Serve) -> None:
    vacant = {"identity": row(), "epoch": 7, "aliases": [], "warnings": []}
    serve(identity__show=vacant, admin__free={**CHANGED, "changed": False, "warnings": ["nobody holds it"]})
    done = place.run("free", "shop-backend", "--reason", "stuck")
    assert (done.code, done.out) == (0, "was vacant already: shop-backend (backend) in shop, vacant, epoch 8\n")
    assert "fences" not in done.err


def test_free_beneath_an_agent_is_refused_before_anybody_is_asked(place: Place, serve: Serve) -> None:
    held = {"identity": LIVE, "epoch": 7, "aliases": [], "warnings": []}
    stub = serve(identity__show=held, mail__peek=refusal("NOT_ALLOWED", "This lever is for people."))
    result = place.run("free", "shop-backend", "--reason", "stuck")
    assert (result.code, "[NOT_ALLOWED]" in result.err) == (1, True), result
    assert "admin.free" not in stub.methods()


@pytest.mark.parametrize(
    ("args", "method", "params", "words"),
    [
        (("retire", "a-b"), "admin.retire", {"name": "a-b"}, "retired "),
        (("unretire", "a-b"), "admin.unretire", {"name": "a-b"}, "brought back "),
        (("rename", "a-b", "c-d"), "admin.rename", {"name": "a-b", "to": "c-d"}, "renamed a-b to "),
        (("retire", "--", "--json"), "admin.retire", {"name": "--json"}, "retired "),
    ],
)
def test_levers(
    place: Place, serve: Serve, args: tuple[str, ...], method: str, params: dict[str, Any], words: str
) -> None:
    stub = serve(**{method.replace(".", "__"): CHANGED})
    result = place.run(*args)
    assert result.code == 0
    assert result.out.startswith(words)
    assert stub.calls[-1] == (method, params)


COMMANDS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "identity.list": (("list",), listing(LIVE)),
    "identity.show": (("show", "a-b"), {"identity": LIVE, "epoch": 7, "aliases": [], "warnings": []}),
    "identity.why": (("why", "a-b"), WHY),
    "identity.claim": (("claim", "a-b"), GRANT),
    "identity.register": (("register", "a-b", "--role", "r"), GRANT),
    "identity.release": (("release",), {"action": "release", "released": None, "warnings": [], "next": None}),
    "admin.free": (("free", "a-b", "--reason", "r", "--yes"), CHANGED),
    "admin.retire": (("retire", "a-b"), CHANGED),
    "admin.unretire": (("unretire", "a-b"), CHANGED),
    "admin.rename": (("rename", "a-b", "c-d"), CHANGED),
    "admin.log": (("log",), {"entries": [ENTRY], "truncated": False}),
    "admin.stats": (("stats",), {"parts": {}}),
}


@pytest.mark.parametrize("method", COMMANDS)
def test_json_is_the_result_and_nothing_else(place: Place, serve: Serve, method: str) -> None:
    args, answer = COMMANDS[method]
    serve(**{method.replace(".", "__"): answer})
    for spelling in (("--json", *args), (*args, "--json")):
        result = place.run(*spelling)
        assert (result.code, result.document) == (0, answer)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("UNKNOWN_IDENTITY", 3),
        ("IDENTITY_IN_USE", 4),
        ("NAME_INVALID", 2),
        ("NOT_AN_AGENT", 1),
        ("OUTCOME_UNKNOWN", 5),
    ],
)
def test_refusals_come_whole(place: Place, serve: Serve, code: str, exit_code: int) -> None:
    serve(identity__claim=refusal(code, "claude-code holds it since noon", "ask\x1b[2J", state="live"))
    plain = place.run("claim", "a-b")
    assert (plain.code, plain.out) == (exit_code, "")
    assert plain.err == f"error: claude-code holds it since noon [{code}]\nhint: ask\\x1b[2J\n"
    as_json = place.run("claim", "a-b", "--json")
    assert (as_json.code, as_json.err) == (exit_code, "")
    assert as_json.document["error"] == {
        "code": code,
        "message": "claude-code holds it since noon",
        "hint": "ask\x1b[2J",
        "retryable": False,
        "data": {"state": "live"},
    }


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("lsit",), "PARAMETER_INVALID"),
        (("list", "--al"), "PARAMETER_UNKNOWN"),
        (("show",), "PARAMETER_MISSING"),
        (("register", "a-b"), "PARAMETER_MISSING"),
        (("free", "a-b", "--yes"), "PARAMETER_MISSING"),
        (("log", "--limit", "0"), "PARAMETER_INVALID"),
        (("list", "a\x1bb"), "PARAMETER_INVALID"),
        ((), "PARAMETER_MISSING"),
    ],
)
def test_usage_errors(place: Place, args: tuple[str, ...], code: str) -> None:
    plain = place.run(*args)
    assert (plain.code, plain.out) == (2, "")
    assert "\x1b" not in plain.err
    as_json = place.run("--json", *args)
    assert (as_json.code, as_json.document["error"]["code"], as_json.err) == (2, code, "")


def test_help_and_version_need_nothing(place: Place) -> None:
    for args in (("--help",), ("list", "--help"), ("service", "install", "-h")):
        result = place.run(*args)
        assert (result.code, result.err) == (0, "")
        assert "Usage: mbxctl" in result.out
    assert place.run("--version").out.startswith("mbxctl 0.")
    assert place.run("--version", "--json").document["version"].startswith("0.")
    assert not place.state.exists()


def test_watch_streams_changes_one_a_line(place: Place, serve: Serve) -> None:
    stub = serve(events__subscribe={"subscribed": True, "seq": 1}, identity__list=listing())
    change = {
        "seq": 2,
        "at": NOW,
        "what": "claimed",
        "name": "shop-backend",
        "project": "shop",
        "state": "live",
        "epoch": 3,
        "who": "codex",
        "reason": None,
    }
    stub.pushes = [{"jsonrpc": "2.0", "method": "events.change", "params": change}] * 2
    plain = place.run("watch", "--all")
    assert plain.out.splitlines() == [f"{NOW}  shop-backend in shop claimed by codex: live, epoch 3"] * 2
    assert plain.code == 1
    assert "STREAM_ENDED" in plain.err
    assert stub.calls[-1] == ("events.subscribe", {})
    as_json = place.run("watch", "--json")
    *changes, error = [json.loads(line) for line in as_json.out.splitlines()]
    assert changes == [change] * 2
    assert error["error"]["code"] == "STREAM_ENDED"
    assert stub.calls[-1] == ("events.subscribe", {"project": "shop"})


def test_watch_says_when_it_was_cut_off(place: Place, serve: Serve) -> None:
    stub = serve(events__subscribe={"subscribed": True, "seq": 1}, identity__list=listing())
    stub.pushes = [{"jsonrpc": "2.0", "method": "events.dropped", "params": {"queued": 1000}}]
    result = place.run("watch")
    assert result.code == 1
    assert "too slow" in result.err


def test_version_skew_names_the_command_and_status_still_answers(place: Place, serve: Serve) -> None:
    skew = refusal("VERSION_SKEW", "the daemon speaks protocol 7, this mbxctl 1", "Run: mbxctl restart")
    serve(hello=skew, status={"version": "9.0.0", "pid": 4711})
    result = place.run("list")
    assert result.code == 69
    assert "hint: Run: mbxctl restart" in result.err
    status = place.run("status", "--json")
    assert (status.code, status.document["pid"], status.document["restart"]["needed"]) == (0, 4711, True)
