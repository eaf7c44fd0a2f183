"""What inputs look like when they are right, by target, and how they are spoilt."""

from __future__ import annotations

import random
import re
from functools import cache

from mbxd.core import events, snapshot
from mbxd.core.evolve import replay
from mbxd.core.state import State
from mbxd.ports import ProcessId
from mbxd.runtime import gitpack
from mbxd.store.segment import snapshot_name
from tests.fuzz import targets as t
from tests.fuzz.targets import Target
from tests.store.life import DIRECTORY

_PING = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[1,2.5,"x",null]},"meta":{"session":"s","epoch":1}}'
_CALL = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mbx_identity","arguments":{"action":"list"}}}'
_CONFIG = b"""
naming = "open"          # "strict" refuses descriptive agent names

[liveness]
detach_grace_s = 60      # awake seconds before others may claim a detached mailbox
idle_after_s = 1800
"""
_MODERN = (
    b'{"jsonrpc":"2.0","id":"m","method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":'
    b'"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":'
    b'{"name":"t","version":"1"}}}}'
)


def _opening(version: bytes) -> bytes:
    return (
        b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"' + version + b'","capabilities":'
        b'{},"clientInfo":{"name":"t","version":"1"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        + _CALL
    )


def _some_events() -> tuple[bytes, ...]:
    ref = events.SessionRef(ProcessId("boot", 1, 2, 3, 4), "h", "codex", ("codex:h",))
    made: tuple[events.Event, ...] = (
        events.ProjectCreated(1, "/tmp/shop", "shop", 1.0),
        events.IdentityRegistered(1, "a-b", "a-b", "qa", None, 0, 1.0),
        events.Granted(1, 1, ref, (), 1.0),
        events.HolderEnded(1, 1, "exited", 1.0, 1.0, "codex"),
        events.Replied("i", "r", b"12345678", b"{}"),
    )
    return tuple(map(events.encode, made))


def _snapshot_of_state() -> tuple[bytes, ...]:
    known = [events.decode(record) for record in _some_events()[:3]]
    return tuple(snapshot.encode(snapshot.freeze(replay(State(), known), {})))


@cache
def all_targets() -> tuple[Target, ...]:
    """Every target, with its seeds."""
    vfs, newest = t.disk()
    hello = b'{"jsonrpc":"2.0","id":1,"result":{"protocol":1,"server":{"pid":7},"lock":{}}}'
    refused = (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"m","data":{"code":"NOT_BOUND","message":"m",'
        b'"hint":"h","retryable":true,"data":{}}}}'
    )
    stat = b"412 (a) b) S 410 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 1 184467 0\n"
    tree = b"40000 agents\0" + b"s" * 20 + b"100644 profile.json\0" + b"t" * 20
    past = "\x1f".join(("a" * 40, gitpack.COMMITTER_EMAIL, "17", "", "1700000000", "GreenCastle: claimed"))
    return (
        Target("framing", (b"one\ntwo\r\n\nthree", b"x" * 50 + b"\n"), t.framing),
        Target("request", (_PING, b'{"jsonrpc":"2.0","id":1,"method":5}', b"[]"), t.request),
        Target(
            "params",
            (
                b'\x05{"name":"shop-a","role":"qa"}',
                b'\x12{"to":["shop-a"],"subject":"s","body":"b","kind":"task","refs":[],"needs_reply":true}',
                b'\x00{"protocol":{"min":1,"max":1},"client":{"name":"n","version":"v","instance":"i"},"hints":{}}',
            ),
            t.params,
        ),
        Target(
            "tool",
            (
                b'{"name":"mbx_identity","arguments":{"action":"register","name":"shop-a","role":"qa"}}',
                b'{"name":"mbx_send","arguments":{"to":["a"],"subject":"s","body":"b"}}',
                b'{"a":[{"b":1,"c":"x, y: z"},{"b":2,"c":"- "}],"d":[1,[2,[]]],"e":{}}',
            ),
            t.tool,
        ),
        Target(
            "eras",
            (
                *map(_opening, (b"2024-11-05", b"2025-03-26", b"2025-06-18", b"2025-11-25")),
                _MODERN,
                b"[" + _CALL + b"]",
                b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}\n' + _CALL,
            ),
            t.eras,
        ),
        Target("bridge", (hello + b"\n" + hello.replace(b'"id":1', b'"id":2'), hello + b"\n" + refused), t.bridge),
        Target("reply", (hello, refused), t.reply),
        Target("segment", (t.contents(vfs, newest), b"MBXDWAL\n" + bytes(90)), t.segment),
        Target("log", (t.contents(vfs, newest),), t.log),
        Target("snapshot", (t.contents(vfs, f"{DIRECTORY}/{snapshot_name(5)}"),), t.snapshot_file),
        Target("event", _some_events(), t.event),
        Target("state", _snapshot_of_state(), t.state),
        Target(
            "config",
            (_CONFIG, b'naming = "strict"\n[sweep]\nolder_than_h = 24\n'),
            t.config_file,
        ),
        Target(
            "project",
            (b'project = "shop"\n', b'# mine\r\nproject = "a-b"', b"gitdir: ../x/.git/worktrees/y\n", b"../..\n"),
            t.project_file,
        ),
        Target(
            "pointer", (b'{"socket": "/run/x.sock", "pid": 5, "ticks": 7, "version": "1"}', b"4194305 77\n"), t.pointer
        ),
        Target(
            "names",
            (
                b"shop-backend",
                b"GreenCastle",
                b"claude-opus-4",
                b"a@example.org",
                b"mbx_" + b"A" * 43,
                "аdmin\u202e\x1b[2J".encode(),
            ),
            t.names,
        ),
        Target("ids", (b"01JABCDEFGHJKMNPQRSTVWXYZ0", b"01jabcde", "ä€\U0001f600".encode()), t.mail_ids),
        Target(
            "search",
            (b'vault AND "the plans"', b"sub* NEAR(a b, 3) OR NOT c", b"subject : x) OR who : (s1", b'"'),
            t.search_query,
        ),
        Target("proc", (stat, b"/usr/bin/env\0-u\0X\0npx\0-y\0mbx-mcp\0", b"bash\0-c\0codex exec\0"), t.proc),
        Target("git", (tree, past.encode()), t.git),
        Target(
            "environment",
            (b"/run/systemd/notify\n3000000\n1", b"0 1000 1\n65534\n/run/user/7", b"../a\n1\n"),
            t.environment,
        ),
    )


def mutated(seed: int, seeds: tuple[bytes, ...]) -> bytes:
    """An input made from others as a bad disk or a bad client would make it; the same number makes the same."""
    draw = random.Random(seed)
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.choice((1, 1, 2, 4, 8, 30))):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(9):
            case 0 if data:
                data[at % len(data)] ^= 1 << draw.randrange(8)
            case 1:
                data[at:at] = draw.randbytes(draw.choice((1, 2, 8)))
            case 2:
                del data[at : at + draw.choice((1, 1, 4, 50))]
            case 3:
                other = draw.choice(seeds)
                cut = draw.randrange(len(other) + 1)
                data[at:at] = other[cut : cut + draw.choice((1, 10, 200))]
            case 4:
                data[at:at] = data[at : at + draw.choice((1, 10, 100))] * draw.choice((1, 2, 20))
            case 5:
                data[at : at + draw.choice((0, 1, 4))] = draw.choice(TOKENS)
            case 6:
                data[at : at + 8] = draw.choice((b"\0", b"\xff", b"\x7f")) * 8
            case 7:
                digits = [found.span() for found in re.finditer(rb"[0-9]+", bytes(data))]
                if digits:
                    start, end = draw.choice(digits)
                    data[start:end] = draw.choice(NUMBERS)
            case _:
                del data[at:]
        del data[100_000:]
    return bytes(data)


TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"true", b"\\u0000", b"\\ud800", b"\n", b"\r\n", b"\0", b" ",
    b"\x1b[2J", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\xc0\x80", b"\xef\xbb\xbf", b"../", b"/", b"~", b"=", b"#", b"'''",
    b"-", b"--", b"*", b"(", b")", b"AND", b"NEAR", b"method", b"params", b"_meta", b"NaN", b"Infinity", b"[" * 600,
)  # fmt: skip
NUMBERS = (b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"9223372036854775808", b"1e999", b"1.5", b"9" * 5000)
