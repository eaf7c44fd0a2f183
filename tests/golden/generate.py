"""Makes the golden files of a release: `python -m tests.golden.generate v2`, from the root of the repository.

Writes `tests/golden/v2/` with `registry/` (segments and snapshots), `mail.db.xz`, `archive.tar.xz`, beside each
what it means as JSON, `wire.json`, what the socket takes and gives, and `records.json`, the fields of stored records.
What was released is never written again: every later build has to read it. A build whose events, tables or methods have
grown makes a new folder, with samples of what is new added below.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import random
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from mbxd.core import events as ev
from mbxd.core import profiles, snapshot
from mbxd.core.evolve import evolve, replay
from mbxd.core.state import State
from mbxd.mail import commands as c
from mbxd.mail.store import MailStore
from mbxd.ports import ProcessId
from mbxd.runtime import replaying
from mbxd.runtime.repo import GitRepo
from tests.golden import readable
from tests.store.life import on_disk

GOLDEN = Path(__file__).parent
AT = 1_769_860_800.0
BOOT = "6f1d3a3c-92f7-4f0e-8f6e-0d2f3c1b5a79"
SNAPSHOTS = (16, 30)
"""Positions at which a snapshot was taken; the log goes on behind the last."""


def process(pid: int, inode: int = 0) -> ProcessId:
    return ProcessId(BOOT, 4026531836, pid, 100_000_000 + pid, inode)


CLAUDE = ev.SessionRef(process(4711, 987654321), "", "claude-code", ("claude-code:0b1e",))
CODEX = ev.SessionRef(process(4800), "thread-7", "codex-mcp-client", ("codex-mcp-client:thread-7",))
OTHER = ev.SessionRef(process(4800), "thread-8", "codex-mcp-client")

HISTORY: tuple[ev.Event, ...] = (
    ev.ProjectCreated(1, "/home/anna/shop", "shop", AT),
    ev.IdentityRegistered(1, "shop-backend", "shop-backend", "backend", "The API", 1, AT + 1),
    ev.Granted(1, 1, CLAUDE, (process(4712),), AT + 1),
    ev.Replied("instance-1", "request-1", b"\x00\xff\x10", b'{"action":"register"}'),
    ev.ShimAttached(1, 1, process(4713, 5), AT + 2),
    ev.ProjectCreated(2, "slug:tools", "tools", AT + 3.125),
    ev.IdentityRegistered(2, "GreenCastle", "greencastle", None, None, 1, AT + 4, "codex", "m-1", "tests", "auto"),
    ev.Granted(2, 1, CLAUDE, (process(4712),), AT + 4, True),
    ev.TokenRotated(2, 1, AT + 5),
    ev.HolderEnded(2, 1, "token", AT + 6, AT + 5.5, "codex-mcp-client"),
    ev.Granted(2, 2, CODEX, (process(4801),), AT + 6, True),
    ev.Confirmed(2, 2, AT + 7),
    ev.ProfileUpdated(2, "codex", "m-2", None, "file", AT + 8),
    ev.RoleSet(2, "qa", AT + 9),
    ev.Released(1, 1, AT + 10, AT + 9.5),
    ev.IdentityRegistered(3, "old-one", "old-one", "docs", "", 2, AT + 11),
    ev.Granted(1, 2, OTHER, (process(4801), process(4802)), AT + 12),
    ev.Freed(1, 3, "it hangs \u2028 \u00e9", AT + 13, AT + 12.5),
    ev.Retired(3, "swept", AT + 14),
    ev.Unretired(3, AT + 15),
    ev.Retired(3, "retired", AT + 16),
    ev.Renamed(2, "shop-tester", "shop-tester", AT + 17),
    ev.Replied("instance-2", "request-1", b"digest", b"{}"),
    ev.InstancesForgotten(("instance-2", "instance-3")),
    ev.Granted(1, 4, CLAUDE, (process(4714),), AT + 18),
    ev.HolderEnded(2, 2, "holder-exited", AT + 19, AT + 18.5),
    ev.IdentityRegistered(4, "nowhere", "nowhere", None, None, 0, AT + 20),
    ev.Granted(3, 1, OTHER, (), AT + 21),
    ev.HolderEnded(3, 1, "grace-over", AT + 22, AT + 21.5, "claude-code"),
    ev.Replied("instance-1", "request-2", b"digest-2", '{"name":"é"}'.encode()),
    ev.ProfileUpdated(2, None, None, "more tests", None, AT + 23),
    ev.RoleSet(4, "ops", AT + 24),
    ev.Freed(4, 1, "nobody holds it", AT + 25, AT + 25),
)


def letter(number: int, sender: int, to: tuple[int, ...], subject: str, body: str, **more: Any) -> c.Send:
    drawn = number.to_bytes(10, "big")
    return c.Send(sender, to, subject, body, AT + number, drawn, number, **more)


KEYED = letter(1, 1, (2, 3), "a subject", "hello, with a key", key="once", refs=("src/a.py", "docs/é"))
REQUESTED = letter(2, 2, (1,), "", "hello, as a request's change", kind="decision")
PRUNED = letter(0, 3, (2,), "old", "to be pruned", key="pruned")
REQUEST = c.Request("instance-1", "request-7", b"\x01\x02digest")
HELD = c.Role(1, "reviewer")
LATER = c.Role(2, "translator")


def send_mail(store: MailStore) -> None:
    """Mail of every kind in every state."""
    first = store.call(KEYED).id
    store.call(REQUESTED, REQUEST)
    asked = store.call(
        letter(3, 1, (2, 3), "a request", "Bäckerei \0 \u2028 \U0001f4ec", kind="request", needs_reply=True)
    ).id
    store.call(letter(4, 2, (1,), "", "the answer", reply_to=asked))
    store.call(letter(5, 3, (c.OWNER,), "an alert", "to the owner\n" * 50, kind="alert"))
    store.call(letter(6, c.OWNER, (1, 2, 3), "a task", "everybody", kind="task"))
    store.call(letter(7, 1, (), "held", "for a reviewer", held=(HELD,), needs_reply=True))
    store.call(letter(8, 1, (2,), "held, too", "for a translator", kind="status", held=(LATER,)))
    store.call(c.ReleaseHeld(1, "reviewer", 3))
    store.call(c.Notice("orphaned", asked, 3, 1, "orphaned: 3 is gone", "nobody holds it", AT + 9, b"n" * 10, 9))
    store.call(c.Deliver(2, (first, asked), AT + 10))
    store.call(c.Ack(2, (first,), AT + 11, "thanks"))
    gone = store.call(PRUNED).id
    store.call(c.Ack(2, (gone,), AT + 12))
    store.call(letter(13, 2, (3,), "kept", "for a client that is gone"), c.Request("instance-0", "1", b"x"))
    store.call(c.Forget("instance-0"))
    assert store.call(c.Prune(AT + 0.5, AT + 14)).messages == 1


def state_at(seq: int) -> State:
    return replay(State(), HISTORY[:seq])


def make_registry(directory: Path) -> dict[str, Any]:
    log = on_disk(directory).log
    at, sizes = 0, random.Random(2)
    while at < len(HISTORY):
        stop = min(len(HISTORY), at + sizes.choice((1, 1, 2, 3)), *[one for one in SNAPSHOTS if one > at])
        log.append([ev.encode(event) for event in HISTORY[at:stop]])
        at = stop
        if at in SNAPSHOTS:
            log.write_snapshot(at, list(snapshot.encode(snapshot.freeze(state_at(at), {}))))
    log.close()
    (directory / "next.spare").unlink(missing_ok=True)
    return readable.registry(state_at(len(HISTORY)))


def make_mail(packed: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/mail.db"
        store = MailStore.open(path)
        send_mail(store)
        assert store.check().problems == []
        meaning = readable.mail(store)
        store.close()
        packed.write_bytes(lzma.compress(Path(path).read_bytes(), preset=9))
    return meaning


def make_archive(packed: Path) -> dict[str, Any]:
    state, entries = State(), []
    for seq, event in enumerate(HISTORY, 1):
        before = state.identities[event.identity].name if isinstance(event, ev.Renamed) else None
        evolve(state, event)
        if profiles.is_change(event):
            entries.append(profiles.Entry(seq, event, before))
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "archive"
        repo = GitRepo(str(directory), os.environ["PATH"])
        repo.prepare()
        repo.write(None, replaying.commits(entries))
        repo.checkout()
        meaning = readable.archive(repo, checked_out(directory))
        with io.BytesIO() as raw:
            with tarfile.open(fileobj=raw, mode="w") as tar:
                tar.add(directory, "archive", filter=_anonymous)
            packed.write_bytes(lzma.compress(raw.getvalue(), preset=9))
    return meaning


def checked_out(directory: Path) -> dict[str, bytes]:
    """Every file of a working tree."""
    found = [one for one in directory.rglob("*") if one.is_file() and ".git" not in one.relative_to(directory).parts]
    return {str(one.relative_to(directory)): one.read_bytes() for one in found}


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = int(AT)
    return info


def make(folder: Path) -> None:
    """All pieces of a release. Raises FileExistsError for a folder that is there, whatever is in it."""
    pieces = {"registry": make_registry, "mail.db.xz": make_mail, "archive.tar.xz": make_archive}
    folder.mkdir()
    for name, maker in pieces.items():
        meaning = json.dumps(maker(folder / name), indent=1, ensure_ascii=False)
        (folder / f"{name.partition('.')[0]}.json").write_text(meaning + "\n")
    write_schemas(folder)


def write_schemas(folder: Path) -> None:
    """What the socket takes and gives, and the fields of what is stored. Raises FileExistsError."""
    for name, schema in (("wire", readable.wire()), ("records", readable.records())):
        with (folder / f"{name}.json").open("x") as file:
            file.write(json.dumps(schema, indent=1) + "\n")


def main(args: list[str], golden: Path = GOLDEN) -> str | None:
    """Make the folder that the arguments name; what is wrong with them, if anything."""
    if len(args) != 1 or not re.fullmatch(r"v[1-9][0-9]{0,3}", args[0]):
        return "usage: python -m tests.golden.generate v<number>"
    try:
        make(golden / args[0])
    except FileExistsError:
        return f"{golden / args[0]} was released: it is never written again. Name a new folder."
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
