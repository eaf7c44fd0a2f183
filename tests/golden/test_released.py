"""Whatever a release has written, this build reads, to the same meaning, and goes on from there."""

from __future__ import annotations

import io
import json
import lzma
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mbx_wire.identity import ClaimParams
from mbx_wire.mail import SendParams
from mbxd.core import events as ev
from mbxd.core import snapshot, tokens
from mbxd.core.evolve import replay
from mbxd.core.machine import digest
from mbxd.core.state import State
from mbxd.mail import commands as c
from mbxd.mail.store import MailStore
from mbxd.ports import NewCommit
from mbxd.runtime.repo import GitRepo
from mbxd.store.log import Recovery
from tests.golden import generate, readable
from tests.mail.support import Mail
from tests.store.life import on_disk

GOLDEN = Path(__file__).parent
RELEASES = sorted(path.parent for path in GOLDEN.glob("*/registry.json"))
NAMES = [path.name for path in RELEASES]
release = pytest.mark.parametrize("release", RELEASES, ids=NAMES)


def meaning(release: Path, what: str) -> Any:
    return json.loads((release / f"{what}.json").read_text())


# -- the registry ---------------------------------------------------------------------------------------------------


def copied(release: Path, place: Path, *, snapshots: int) -> Path:
    """A copy of the registry with only the oldest so many snapshots."""
    directory = place / f"{release.name}-{snapshots}"
    shutil.copytree(release / "registry", directory, dirs_exist_ok=True)
    for extra in sorted(directory.glob("*.snap"))[snapshots:]:
        extra.unlink()
    return directory


def recovered(recovery: Recovery) -> State:
    state = State() if recovery.snapshot is None else snapshot.load(recovery.snapshot)
    return replay(state, (ev.decode(record) for _, record in recovery.records))


@release
@pytest.mark.parametrize("snapshots", [0, 1, 2])
def test_a_registry_means_what_it_meant(release: Path, snapshots: int, tmp_path: Path) -> None:
    """From the log alone, and from each snapshot with what came behind it."""
    recovery = on_disk(copied(release, tmp_path, snapshots=snapshots))
    assert (recovery.snapshot is None, recovery.notes) == (snapshots == 0, [])
    now = readable.registry(recovered(recovery))
    recovery.log.close()
    assert readable.same(now, meaning(release, "registry"))


@release
def test_a_registry_goes_on(release: Path, tmp_path: Path) -> None:
    directory = copied(release, tmp_path, snapshots=2)
    log = on_disk(directory).log
    before = log.durable_seq
    log.append([ev.encode(ev.RoleSet(1, "frontend", 2e9))])
    log.close()
    recovery = on_disk(directory)
    state = recovered(recovery)
    recovery.log.close()
    assert (recovery.log.durable_seq, state.identities[1].role) == (before + 1, "frontend")
    log = on_disk(directory).log
    log.write_snapshot(before + 1, list(snapshot.encode(snapshot.freeze(state, {}))))
    log.close()
    again = on_disk(directory)
    assert again.snapshot_seq == before + 1
    assert readable.registry(recovered(again)) == readable.registry(state)
    again.log.close()


def test_some_release_holds_every_kind_of_event_and_chunk(tmp_path: Path) -> None:
    """Fails for a new kind: make a new folder with `generate.py`, and keep the old ones."""
    held: set[str] = set()
    for path in RELEASES:
        recovery = on_disk(copied(path, tmp_path, snapshots=0))
        held |= {type(ev.decode(record)).__name__ for _, record in recovery.records}
        recovery.log.close()
    assert held == readable.kinds(ev.Event)
    decode = msgspec.msgpack.Decoder(snapshot.Chunk).decode
    frozen: set[str] = set()
    for path in RELEASES:
        for snapshots in (1, 2):
            recovery = on_disk(copied(path, tmp_path, snapshots=snapshots))
            frozen |= {type(decode(chunk)).__name__ for chunk in recovery.snapshot or ()}
            recovery.log.close()
    assert frozen == readable.kinds(snapshot.Chunk)


def test_a_record_with_more_fields_has_a_format_of_its_own() -> None:
    """An older daemon would skip the field and leave it out of its next snapshot. So that it refuses, raise VERSION in
    mbxd/store/format.py, and make a new folder.
    """
    now = readable.records()
    same = [then for path in RELEASES if (then := meaning(path, "records"))["format"] == now["format"]]
    for name, then in (same[-1]["records"] if same else {}).items():
        assert now["records"].get(name) == then, name


def test_tokens_and_marks_of_requests_stay_what_they_are() -> None:
    """A worker started before an upgrade has its token; a call that an upgrade cut off is repeated after it."""
    assert tokens.mint(bytes(range(32)), 7, 2) == "mbx_EcQi0xtUUssiCtXwivzwaQOWzckh2i2SyOhd6zdCL7s"
    assert digest("identity.claim", ClaimParams("shop-backend", role="qa"), "thread-7").hex() == "df8dd3e8042cbc95"
    letter = SendParams(to=["shop-a"], subject="s", body="b", needs_reply=True)
    assert digest("SendParams", letter, "").hex() == "59657fed45186529"


def test_a_parameter_that_a_newer_build_adds_makes_no_other_request() -> None:
    newer = msgspec.defstruct("ClaimParams", [("name", str | None, None), ("later", int | None, None)], frozen=True)
    assert digest("c", newer("a"), "") == digest("c", ClaimParams("a"), "")
    assert digest("c", newer("a", 1), "") != digest("c", ClaimParams("a"), "")


# -- mail -----------------------------------------------------------------------------------------------------------


def unpacked(release: Path, place: Path) -> str:
    path = place / "mail.db"
    path.write_bytes(lzma.decompress((release / "mail.db.xz").read_bytes()))
    path.chmod(0o600)
    return str(path)


@pytest.fixture(params=RELEASES, ids=NAMES)
def post(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Mail, Any]]:
    mail = Mail(unpacked(request.param, tmp_path))
    yield mail, meaning(request.param, "mail")
    mail.close()


def test_mail_means_what_it_meant(post: tuple[Mail, Any]) -> None:
    mail, then = post
    assert mail.store.check().problems == []
    assert readable.same(readable.mail(mail.store), then)


def test_mail_goes_on(post: tuple[Mail, Any]) -> None:
    """New mail stands behind the old; what was sent before the upgrade is not sent again after it."""
    mail, then = post
    ids = [letter["id"] for letter in then["letters"]]
    again = mail.sent(generate.KEYED)
    assert (again.id, again.duplicate) == (ids[0], True)
    kept = mail.sent(generate.REQUESTED, generate.REQUEST)
    assert (kept.id, kept.duplicate) == (ids[1], False)
    pruned = mail.sent(generate.PRUNED)
    assert pruned.duplicate
    assert pruned.id not in ids
    assert readable.same(readable.mail(mail.store), then), "repeats change nothing"
    fresh = mail.send(1, (2,), now=generate.AT)
    assert fresh > max(ids)
    assert mail.inbox(2) == [*then["inboxes"]["2"], fresh]
    released = mail.store.call(c.ReleaseHeld(generate.LATER.project, generate.LATER.role, 3))
    assert [released.ids] == [[one["id"] for one in then["letters"] if one["held"]]]


@release
def test_other_tables_have_a_version_of_their_own(release: Path, tmp_path: Path) -> None:
    """What an upgrade makes has the columns of what is made new; under one number it is the same to the letter."""
    path, fresh = unpacked(release, tmp_path), str(tmp_path / "fresh.db")
    then = readable.tables(path)
    for one in (path, fresh):
        MailStore.open(one).close()
    now = readable.tables(fresh)
    assert readable.tables(path)["columns"] == now["columns"]
    if then["version"] == now["version"]:
        assert then == now, "raise VERSION in mbxd/mail/schema.py, and add a step to UPGRADES"


def test_some_release_holds_mail_of_every_kind_and_a_row_of_every_table(tmp_path: Path) -> None:
    kinds: set[str] = set()
    filled: set[str] = set()
    for path in RELEASES:
        with closing(sqlite3.connect(unpacked(path, tmp_path))) as conn:
            kinds |= {kind for (kind,) in conn.execute("SELECT kind FROM messages")}
            tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            filled |= {name for name in tables if conn.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone()}  # noqa: S608
    assert kinds == c.KINDS
    present = MailStore.open(str(tmp_path / "present.db"))
    present.close()
    with closing(sqlite3.connect(present.path)) as conn:
        assert filled == {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


# -- the archive ----------------------------------------------------------------------------------------------------


def unpacked_archive(release: Path, place: Path) -> Path:
    raw = lzma.decompress((release / "archive.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        tar.extractall(place, filter="data")
    return place / "archive"


@release
def test_an_archive_means_what_it_meant_and_goes_on(release: Path, tmp_path: Path) -> None:
    directory = unpacked_archive(release, tmp_path)
    repo = GitRepo(str(directory), os.environ["PATH"])
    repo.prepare()
    then = meaning(release, "archive")
    assert readable.same(readable.archive(repo, generate.checked_out(directory)), then)
    tip = repo.write(then["tip"][0], [NewCommit("later\n\nMbx-Seq: 99", 2e9, [("projects/a/project.json", b"{}\n")])])
    assert tip is not None
    assert repo.tip() == (tip, 99)
    assert [commit.hexsha for commit in repo.log((), None)][1:] == [commit[0] for commit in then["commits"]]
    assert repo.check() == []


# -- the generator --------------------------------------------------------------------------------------------------


@release
def test_what_was_released_is_never_written_again(release: Path) -> None:
    before = {path: path.read_bytes() for path in release.rglob("*") if path.is_file()}
    assert "never written again" in str(generate.main([release.name]))
    assert {path: path.read_bytes() for path in release.rglob("*") if path.is_file()} == before


def test_the_generator_makes_what_its_readers_read(tmp_path: Path) -> None:
    """So that the next release's folder is good when it is needed."""
    folder = tmp_path / "next"
    generate.make(folder)
    recovery = on_disk(copied(folder, tmp_path, snapshots=2))
    assert readable.registry(recovered(recovery)) == meaning(folder, "registry")
    recovery.log.close()
    mail = Mail(unpacked(folder, tmp_path))
    assert readable.mail(mail.store) == meaning(folder, "mail")
    mail.close()
    directory = unpacked_archive(folder, tmp_path)
    repo = GitRepo(str(directory), os.environ["PATH"])
    assert readable.archive(repo, generate.checked_out(directory)) == meaning(folder, "archive")


@pytest.mark.parametrize("args", [[], ["--help"], ["v1", "v2"], ["2"], ["v0"], ["v2/../v1"], ["../v9"], [""]])
def test_what_names_no_release_writes_nothing(args: list[str], tmp_path: Path) -> None:
    assert "usage" in str(generate.main(args, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_never_written_again(tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    assert "never written again" in str(generate.main(["v2"], tmp_path))
    assert list((tmp_path / "v2").iterdir()) == []
