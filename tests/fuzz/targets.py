"""Every parser of bytes or text that somebody else wrote, with what it may answer to anything at all.

A target takes bytes; it fails by an exception that the parser does not promise, or by an assertion about its result.

| target | parser | fed by |
|---|---|---|
| framing | `mbx_wire.framing.LineReader` | socket, stdio |
| request | `mbxd.server.wire.parse` | socket |
| params | `mbxd.server.params.ParamsDecoder` of every method | socket |
| tool | `mbxd.server.tools.call`, `tools.result` as TOON | socket |
| eras | `mbx_mcp.eras.Eras` | the agent CLI's stdio, every revision |
| bridge | `mbx_mcp.bridge.Bridge` | the daemon |
| reply | `mbx_client.blocking.result_of` | the daemon |
| segment | `mbxd.store.format`: header, frames, batches, what is readable behind damage | disk |
| log | `mbxd.store.log.Log.open` with a changed segment | disk |
| snapshot | `mbxd.store.snapshot.read_snapshot` | disk |
| event | `mbxd.core.events.decode` and the replay of what it gives | disk |
| state | `mbxd.core.snapshot.load` | disk |
| config | `mbxd.config.load` | the user |
| project | `.mbx.toml` and the files of Git: `mbx_client.project` | a repository |
| pointer | `daemon.json`, the lock file, the marks: `mbx_client`, `mbxctl.lockfile`, `mbxd.store.lock` | disk |
| names | `mbxd.core.naming`, `agentnames`, `tokens` | agents |
| ids | `mbxd.mail.ids`, cursors of `mbxd.mail.queries` | agents |
| search | `mbxd.mail.search.understood` (FTS5 itself runs the result) | agents |
| proc | `mbxd.runtime.procfs`: stat, cmdline; `mbx_wire.hostrule` | the kernel, any process's argv |
| git | `mbxd.runtime.gitpack` trees, `repo` log lines | Git |
| environment | `mbxd.server.systemd`, `mbx_wire.places` | who starts it |
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import tempfile
import tomllib
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from mbx_client import blocking, paths, project
from mbx_mcp.bridge import Bridge
from mbx_mcp.eras import Eras, load_tools
from mbx_wire import hostrule, places
from mbx_wire.envelope import Request
from mbx_wire.framing import LineReader, Oversized
from mbx_wire.methods import METHODS
from mbxctl import checks_place, lockfile
from mbxd import config
from mbxd.core import agentnames, events, naming, snapshot, tokens
from mbxd.core.evolve import replay
from mbxd.core.rejected import Rejected
from mbxd.core.state import State
from mbxd.mail import ids, queries, schema, search
from mbxd.mail.errors import MailRefused
from mbxd.ports import RepoFailed
from mbxd.runtime import gitpack, procfs, repo
from mbxd.server import systemd, tools, wire
from mbxd.server.params import ParamsDecoder
from mbxd.store import format as fmt
from mbxd.store.errors import Damaged, NewerFormat
from mbxd.store.lock import parse_owner
from mbxd.store.segment import snapshot_name
from mbxd.store.snapshot import read_snapshot
from tests.store.life import DIRECTORY, open_log
from tests.support.memvfs import MemVfs

UNREADABLE = (msgspec.DecodeError, LookupError, AttributeError)
"""What `mbxd.app.recover` turns into a refusal to start."""


class Target(NamedTuple):
    """A parser under test. seeds: inputs as they should be, for others to be made from."""

    name: str
    seeds: tuple[bytes, ...]
    check: Callable[[bytes], None]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# --- what comes over a socket or stdio ------------------------------------------------------------------


def framing(data: bytes) -> None:
    """However it is cut, the lines are the same; nothing is held that need not be."""
    limit = 1 + len(data) // 3
    whole = LineReader(limit).feed(data)
    reader, cut = LineReader(limit), []
    marks = sorted({0, len(data), *(byte % (len(data) + 1) for byte in data[:8])})
    for start, end in pairwise(marks):
        cut += reader.feed(data[start:end])
        assert reader.buffered <= limit
    assert [line for line in cut if isinstance(line, bytes)] == [line for line in whole if isinstance(line, bytes)]
    assert all(isinstance(line, Oversized) or len(line) <= limit for line in cut)
    reader.give_up()
    assert reader.buffered == 0
    assert reader.feed(b"\nlast\n")[-1:] == [b"last"] or limit < 4


def request(data: bytes) -> None:
    try:
        assert isinstance(wire.parse(data), Request)
        return
    except wire.Malformed as malformed:
        line = malformed.reply
    assert line.endswith(b"\n")
    assert json.loads(line)["error"]["code"] in {-32700, -32600}


_DECODERS = [ParamsDecoder(method.params) for method in METHODS.values()]


def params(data: bytes) -> None:
    try:
        found = _DECODERS[data[0] % len(_DECODERS) if data else 0](data[1:])
        assert isinstance(found, msgspec.Struct)
        return
    except Rejected as rejected:
        refusal = rejected
    assert refusal.code.startswith("PARAMETER_")
    assert refusal.message.isprintable(), refusal.message
    json.dumps(refusal.body())


def tool(data: bytes) -> None:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return
    tools.result(msgspec.json.encode(value), 0, toon=True)
    name = value.get("name") if isinstance(value, dict) else None
    arguments = value.get("arguments") if isinstance(value, dict) else None
    if isinstance(name, str) and (arguments is None or isinstance(arguments, dict)):
        with contextlib.suppress(Rejected, tools.UnknownTool):
            assert tools.call(name, arguments).method in METHODS


def eras(data: bytes) -> None:
    shim = Eras(load_tools)
    for line in data.split(b"\n"):
        before = len(shim.out)
        shim.receive(line)
        assert len(shim.out) - before <= 1
        for accepted in shim.calls:
            shim.answer(accepted.ticket, {"content": [], "structuredContent": {}, "isError": False})
        shim.calls.clear()
    shim.finish()
    for line in shim.out:
        assert b"\n" not in line
        json.loads(line)


def bridge(data: bytes) -> None:
    """A daemon that answers anything: calls end, and only once."""
    from mbx_mcp.eras import Call

    subject = Bridge(lambda handles: {"sessions": handles}, lambda _hello: None)
    subject.submit(Call(1, "mbx_identity", {"action": "list"}, None), 0)
    subject.connected(0)
    for at, line in enumerate(data.split(b"\n")):
        subject.receive(line, float(at))
    subject.lost(1000)
    subject.connected(1001)
    subject.receive(data, 1002)
    subject.give_up()
    assert len([one for one in subject.outcomes if one.ticket == 1]) <= 1
    for line in subject.outbox:
        json.loads(line)
    shim = Eras(load_tools)
    call = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mbx_whoami","arguments":{}}}'
    for version in (b"2024-11-05", b"2025-03-26"):
        opening = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"%s"}}' % version
        for sent in (opening, call):
            shim.receive(sent)
        for accepted in shim.calls:
            shim.answer_encoded(accepted.ticket, data)
        shim.calls.clear()
    assert shim.open == 0


def reply(data: bytes) -> None:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(message, dict):
        with contextlib.suppress(blocking.ClientError):
            blocking.result_of(message)


# --- what lies on the disk ------------------------------------------------------------------------------


def segment(data: bytes) -> None:
    try:
        header = fmt.decode_header(data, fmt.SEGMENT_MAGIC, "f")
    except (Damaged, NewerFormat):
        header = fmt.Header(7, 1)
    found = fmt.scan(data, header.salt, header.first)
    assert fmt.HEADER_SIZE <= found.end <= max(len(data), fmt.HEADER_SIZE)
    assert sum(map(len, found.records)) <= len(data)
    later = fmt.find_later(data, found.end, header.salt, found.batches + 1)
    assert later is None or found.end <= later < len(data)
    for first, last in fmt.readable_batches(data, found.end, header.salt, found.batches + 1):
        assert first <= last


RECORDS = [f"record {number}".encode() * (number % 4 + 1) for number in range(1, 13)]


@cache
def disk() -> tuple[MemVfs, str]:
    """A log of three segments and a snapshot, and the path of the newest segment."""
    vfs = MemVfs()
    log = open_log(vfs).log
    for at in range(0, len(RECORDS), 2):
        log.append(RECORDS[at : at + 2])
        log.prepare_spare()
    log.write_snapshot(5, RECORDS[:5])
    log.close()
    newest = max(name for name in vfs.list_dir(DIRECTORY) if name.endswith(".wal"))
    return vfs, f"{DIRECTORY}/{newest}"


def contents(vfs: MemVfs, path: str) -> bytes:
    file = vfs.open(path, read_only=True)
    data = file.pread(file.size(), 0)
    file.close()
    return data


def _with(path: str, data: bytes) -> MemVfs:
    """The same disk with other contents at a path."""
    vfs = disk()[0].after_kill()
    file = vfs.open(path)
    file.truncate(len(data))
    file.pwrite(data, 0)
    file.close()
    return vfs


def log(data: bytes) -> None:
    """A start is refused, or it shows records that were written, in their order, and goes on."""
    vfs = _with(disk()[1], data)
    try:
        recovery = open_log(vfs)
    except (Damaged, NewerFormat):
        return
    found = list(recovery.snapshot or []) + [record for _, record in recovery.records]
    assert found == RECORDS[: len(found)]
    recovery.log.close()


def snapshot_file(data: bytes) -> None:
    path = f"{DIRECTORY}/{snapshot_name(5)}"
    with contextlib.suppress(Damaged, NewerFormat):
        assert read_snapshot(_with(path, data), DIRECTORY, 5) == RECORDS[:5]


def event(data: bytes) -> None:
    """What can be decoded can be replayed, or the start is refused by name."""
    with contextlib.suppress(*UNREADABLE):
        replay(State(), [events.decode(data)])


def state(data: bytes) -> None:
    with contextlib.suppress(*UNREADABLE):
        snapshot.load([data])
    with contextlib.suppress(*UNREADABLE):
        snapshot.load([*snapshot.encode(snapshot.freeze(State(), {})), data])


# --- what people and repositories write -----------------------------------------------------------------


def _in_file(data: bytes, name: str, use: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="mbx-fuzz-") as root:
        path = Path(root, name)
        path.write_bytes(data)
        use(path)


def config_file(data: bytes) -> None:
    def use(path: Path) -> None:
        assert checks_place.config(str(path)).level in {"ok", "fail"}
        with contextlib.suppress(config.BadConfig):
            policy = config.load(str(path)).policy()
            assert 1 <= policy.detach_grace <= 86_400
            assert 1 <= policy.idle_after <= 86_400

    _in_file(data, "config.toml", use)


def project_file(data: bytes) -> None:
    plain = project._plain(data)
    if plain is not None:
        assert tomllib.loads(data.decode()) == {"project": plain}, "the short way says what TOML says"

    def use(path: Path) -> None:
        with contextlib.suppress(project.BadProjectFile):
            found = project.of_directory(str(path.parent), frozenset())
            assert found is not None
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", found.slug)
            found.key.encode()

    _in_file(data, project.CONFIG_NAME, use)

    def git(path: Path) -> None:
        (path.parent / "there/.git").mkdir(parents=True)
        for name in ("HEAD", "commondir", "config"):
            (path.parent / "there/.git" / name).write_bytes(data)
        for place in (path.parent, path.parent / "there"):
            found = project.of_directory(str(place), frozenset())
            if found is not None:
                found.key.encode()

    _in_file(data, ".git", git)


def pointer(data: bytes) -> None:
    pid, ticks = parse_owner(data)
    assert pid >= 0
    assert ticks >= 0

    def use(path: Path) -> None:
        where = paths.Places(str(path.parent), f"{path.parent}/s", f"{path.parent}/c")
        found = paths.read_pointer(where)
        assert found is None or found["socket"].startswith("/")
        (path.parent / places.LOCK_NAME).write_bytes(data)
        named = lockfile.named_process(where)
        assert named is None or named[0] > 1
        if lockfile.holder(where) is not None:
            raise AssertionError("a process that wrote no such file")

    _in_file(data, places.POINTER_NAME, use)


# --- what agents name -----------------------------------------------------------------------------------


def names(data: bytes) -> None:
    text = _text(data)
    for check in (
        naming.check_address,
        naming.check_role,
        naming.check_description,
        agentnames.check_hint,
        lambda name: agentnames.check_name(name, "codex", "five", strict=False),
        lambda name: agentnames.check_name(name, "codex", "five", strict=True),
        lambda word: naming.check_unicode(word, "body"),
    ):
        said = ""
        try:
            check(text)
        except Rejected as refusal:
            said = refusal.message + refusal.hint
        assert said.isprintable(), said
    assert naming.is_address(naming.suggest(text))
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", naming.slug(text))
    shown = naming.shown(text)
    assert shown.isascii()
    assert shown.isprintable()
    naming.near(text, ["shop-a", text], "shop")
    assert not tokens.matches(b"k" * 32, 1, 1, text)
    assert not tokens.inside(tokens.hidden(text))


def mail_ids(data: bytes) -> None:
    text = _text(data)
    found = ids.canonical(text)
    if found is not None and len(found) == ids.LENGTH:
        assert ids.decode(found) < 1 << 130
        if ids.decode(found) < 1 << 128:
            assert ids.encode(ids.decode(found)) == found
    with contextlib.suppress(MailRefused):
        queries._cursor(text)
    for at in (int.from_bytes(data[:2], "big"), -1, len(data)):
        data[: queries._boundary(data, at)].decode("utf-8", "replace")


@cache
def _mail() -> sqlite3.Connection:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.executescript(schema.TABLES)
    search.prepare(conn)
    conn.execute("INSERT INTO words (rowid, subject, body, who) VALUES (1, 'plans', 'the vault', 's1 r2')")
    return conn


def search_query(data: bytes) -> None:
    found = search.understood(_mail(), _text(data))
    if found is not None:
        match = f'{{subject body}} : ({found}) AND who : "r9"'
        rows = _mail().execute("SELECT rowid FROM words WHERE words MATCH ? LIMIT 5", (match,)).fetchall()
        assert rows == [], "nothing in a query reaches beyond its brackets, to other people's mail"


# --- what the machine says ------------------------------------------------------------------------------


def proc(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        procfs.parse_stat(data)
    argv = procfs.split_cmdline(data)
    exe = os.fsdecode(data[:40].replace(b"\0", b"/"))
    chain = [hostrule.Process(pid, 7, argv, exe) for pid in (412, 410, 400, 1)]
    chosen = hostrule.choose_host(chain)
    assert 0 <= chosen.place < len(chain)
    for word in (chosen.label, hostrule.label(chain[1])):
        assert word.isprintable()
        assert len(word) <= 40


def git(data: bytes) -> None:
    with contextlib.suppress(RepoFailed):
        for name, (mode, sha) in gitpack._parse(data).items():
            assert b"\0" not in name
            assert b" " not in mode
            assert len(sha) <= 20
    with contextlib.suppress(RepoFailed):
        repo._past(_text(data))


def environment(data: bytes) -> None:
    words = [os.fsdecode(part) for part in data.replace(b"\0", b"").split(b"\n")]
    first, second, third = (*words, "", "", "")[:3]
    if first != str(os.getpid()):  # else it would take over descriptors of the test run
        assert systemd.listen_socket({"LISTEN_PID": first, "LISTEN_FDS": second}) is None
    notifier = systemd.Notifier({"NOTIFY_SOCKET": first, "WATCHDOG_USEC": second, "WATCHDOG_PID": third})
    assert notifier.watchdog_s is None or notifier.watchdog_s > 0
    env = {"HOME": first, "MBX_STATE_DIR": second, "XDG_RUNTIME_DIR": third, "XDG_CONFIG_HOME": third}
    try:
        found = places.state_dir(env, "/home/ann")
        assert found.startswith("/")
        assert places.default_socket(env, 7, found, "/home/ann", os.path.isabs).startswith("/")
        assert places.config_path(env, "/home/ann").startswith("/")
    except ValueError as bad:
        said = str(bad)
        if not said.startswith(("MBX_", "no home")):
            raise
    assert 0 in places.roots(first, second)
    places.parent_problem(f"/{first}", 7, {7}, os.lstat, os.readlink, {0})
