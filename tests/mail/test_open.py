"""What is opened, what is refused, and that a refused file stays as it was."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from mbxd.mail import schema
from mbxd.mail.errors import MailFull, MailUnusable
from mbxd.mail.store import MailStore
from tests.mail.support import Mail


def contents(path: str) -> dict[str, bytes]:
    folder = Path(path).parent
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def refused(path: str) -> str:
    """The text of the refusal; nothing in the directory may have changed."""
    before = contents(path)
    with pytest.raises(MailUnusable) as found:
        MailStore.open(path)
    assert contents(path) == before
    assert "identities work without mail" in str(found.value).lower()
    return str(found.value)


def test_a_new_file_is_ours_and_private(mail: Mail, path: str) -> None:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    head = Path(path).read_bytes()[:100]
    assert int.from_bytes(head[68:72], "big") == schema.APPLICATION_ID
    assert int.from_bytes(head[60:64], "big") == schema.VERSION
    settings = mail.store._in_writer(
        lambda conn: [
            conn.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    )
    assert settings == ["wal", 2, 1]


def test_what_was_sent_is_there_after_reopening(mail: Mail, path: str) -> None:
    message = mail.send()
    mail.close()
    mail.store = MailStore.open(path)
    assert mail.inbox(2) == [message]
    assert mail.store.unread_counts == {2: 1}


def test_odd_paths(tmp_path: Path) -> None:
    folder = tmp_path / "a b?c#d%20'é"
    folder.mkdir()
    store = MailStore.open(str(folder / "mail.db"))
    store.close()
    assert (folder / "mail.db").exists()


def test_text_and_short_files_are_no_mail(path: str) -> None:
    for data in (b"", b"hello\n", b"SQLite format 3\0", b"x" * 5000):
        Path(path).write_bytes(data)
        assert "no SQLite file" in refused(path)


def test_another_programs_file_is_left_alone(path: str) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE theirs (a)")
    assert "another program" in refused(path)


def test_a_newer_file_is_left_alone(path: str) -> None:
    MailStore.open(path).close()
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert f"version {schema.VERSION + 1}" in refused(path)


def test_a_newer_version_in_the_wal_counts(path: str, tmp_path: Path) -> None:
    MailStore.open(path).close()
    copy = tmp_path / "copy"
    copy.mkdir()
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        for name in ("mail.db", "mail.db-wal"):
            (copy / name).write_bytes((tmp_path / name).read_bytes())
    before = (copy / "mail.db").read_bytes(), (copy / "mail.db-wal").read_bytes()
    with pytest.raises(MailUnusable, match="newer"):
        MailStore.open(str(copy / "mail.db"))
    assert before == ((copy / "mail.db").read_bytes(), (copy / "mail.db-wal").read_bytes())


def test_missing_tables(path: str) -> None:
    MailStore.open(path).close()
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("DROP TABLE held")
    with pytest.raises(MailUnusable, match="held"):
        MailStore.open(path)


def test_damage_is_named_at_the_start(path: str) -> None:
    mail = Mail(path)
    for _ in range(20):
        mail.send()
    mail.close()
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(os.urandom(3000))
    with pytest.raises(MailUnusable, match="damaged"):
        MailStore.open(path)


def test_damage_is_named_when_it_is_met(path: str) -> None:
    mail = Mail(path)
    for number in range(200):
        mail.send(body=f"{number} " * 300)
    mail.close()
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xff" * (size // 2 // 4096 * 4096))
    try:
        store = MailStore.open(path)
    except MailUnusable:
        return
    try:
        with pytest.raises(MailUnusable, match="damaged"):
            [store.search(None, "body OR 1 OR 2 OR 150"), store.check(), store.inbox(2, limit=200)]
    finally:
        store.close()


def test_a_lost_file_is_not_replaced_beside_its_log(path: str) -> None:
    Path(f"{path}-wal").write_bytes(b"x")
    assert "is missing" in refused(path)


def test_a_symbolic_link_is_not_followed(path: str, tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(MailUnusable, match="is a symbolic link, not a plain file: move it away"):
        MailStore.open(path)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(MailUnusable, match="No such file"):
        MailStore.open(str(tmp_path / "none" / "mail.db"))


def test_a_half_made_file_is_made_anew(path: str) -> None:
    Path(f"{path}.new").write_bytes(b"half")
    MailStore.open(path).close()
    assert sorted(contents(path)) == ["mail.db"]


def test_an_older_version_is_brought_up_to_date(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mail = Mail(path)
    message = mail.send()
    mail.close()
    monkeypatch.setattr(schema, "VERSION", 3)
    steps = {
        1: lambda conn: conn.execute("ALTER TABLE notices ADD COLUMN one TEXT"),
        2: lambda conn: conn.execute("ALTER TABLE notices ADD COLUMN two TEXT"),
    }
    monkeypatch.setattr(schema, "UPGRADES", steps)
    upgraded = Mail(path)
    assert upgraded.inbox(2) == [message]
    upgraded.close()
    assert int.from_bytes(Path(path).read_bytes()[60:64], "big") == 3


def test_a_failing_upgrade_changes_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MailStore.open(path).close()
    monkeypatch.setattr(schema, "VERSION", 2)

    def step(conn: sqlite3.Connection) -> None:
        conn.execute("ALTER TABLE notices ADD COLUMN one TEXT")
        conn.execute("INSERT INTO nowhere VALUES (1)")

    monkeypatch.setattr(schema, "UPGRADES", {1: step})
    with pytest.raises(MailUnusable, match="nowhere"):
        MailStore.open(path)
    monkeypatch.undo()
    Mail(path).close()


def test_every_version_has_its_step() -> None:
    assert sorted(schema.UPGRADES) == list(range(1, schema.VERSION))


def test_a_backup_is_a_whole_store(mail: Mail, tmp_path: Path) -> None:
    message = mail.send()
    target = str(tmp_path / "copy" / "backup.db")
    os.mkdir(os.path.dirname(target))
    mail.store.backup(target)
    mail.send()
    copy = Mail(target)
    assert copy.inbox(2) == [message]
    assert copy.found(1, "body") == [message]
    copy.close()
    with pytest.raises(FileExistsError):
        mail.store.backup(target)
    assert sorted(os.listdir(os.path.dirname(target))) == ["backup.db"]


def test_no_room_for_a_backup_leaves_nothing(mail: Mail, tmp_path: Path) -> None:
    mail.send()
    with pytest.raises((MailFull, MailUnusable, OSError)):
        mail.store.backup("/proc/backup.db")


def test_check_finds_wrong_counts_and_a_wrong_index(mail: Mail) -> None:
    mail.send()
    mail.store._unread[9] += 1
    mail.store._in_writer(
        lambda conn: conn.execute("INSERT INTO words (rowid, subject, body, who) VALUES (99, 'ghost', '', '')")
    )
    problems = mail.store.check().problems
    assert len(problems) == 2
    assert "unread" in problems[0]
    assert "index" in problems[1]
    mail.store._unread.pop(9)
    mail.store._in_writer(
        lambda conn: conn.execute(
            "INSERT INTO words (words, rowid, subject, body, who) VALUES ('delete', 99, 'ghost', '', '')"
        )
    )
