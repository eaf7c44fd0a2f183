"""Power fails at any write, sync or rename of the mail store; whatever was acknowledged by then is there."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mbxd.mail import schema, writer
from mbxd.mail.errors import MailError
from mbxd.mail.store import MailStore
from tests.mail.promises import Damaged, Life, Lost, Promise, check
from tests.mail.support import Mail
from tests.mail.tape import Tape, recorded
from tests.support.memvfs import MemVfs

BURSTS = 30


@pytest.fixture(autouse=True)
def many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short life has as many as a long one: pages go to the file, the log begins anew."""
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 120)


class Cuts:
    """Lives of one store, each of which begins with what the power cut in the one before left."""

    def __init__(self, root: Path, synchronous: str = "FULL") -> None:
        self._root = root
        self._synchronous = synchronous
        self._number = itertools.count()
        self.known: list[Promise] = []
        self.begin: dict[str, bytes] = {}

    def fresh(self, files: dict[str, bytes]) -> str:
        """The path of mail.db in a directory with these files."""
        folder = self._root / str(next(self._number))
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return str(folder / "mail.db")

    def live(self, seed: int) -> Tape:
        path = self.fresh(self.begin)
        with recorded(os.path.dirname(path)) as tape, contextlib.closing(MailStore.open(path)) as store:
            store._in_writer(lambda conn: conn.execute(f"PRAGMA synchronous = {self._synchronous}"))
            Life(store, tape, seed, self.known).go_on(BURSTS)
        return tape

    def points(self, tape: Tape, count: int, draw: random.Random) -> Iterator[tuple[int, MemVfs]]:
        """Some moments of a life; every other one right behind a promise, where it is freshest."""
        fresh = sorted({place for place, _ in tape.promises})
        chosen = Counter(draw.choice(fresh) if n % 2 else draw.randrange(len(tape.calls) + 1) for n in range(count))
        for at, disk in enumerate(tape.disks()):
            for _ in range(chosen[at]):
                yield at, disk

    def cut(self, tape: Tape, count: int, seed: int) -> list[Lost | Damaged]:
        """Cut the power so often; what was found wrong. The next life begins with one of the disks."""
        draw = random.Random(seed)
        wrong: list[Lost | Damaged] = []
        left: list[tuple[dict[str, bytes], list[Promise]]] = []
        for at, disk in self.points(tape, count, draw):
            image = disk.after_power_cut(draw.randrange(2**32)).image(tape.directory)
            if draw.random() < 0.2:
                image["mail.db-shm"] = draw.randbytes(32768)  # never synced, so anything
            promises = [*self.known, *tape.promised(at)]
            left.append((image, promises))
            path = self.fresh(image)
            try:
                check(path, promises)
            except (Lost, Damaged) as error:
                error.add_note(f"life {seed}, power cut behind call {at} of {len(tape.calls)}: {path}")
                wrong.append(error)
        self.begin, self.known = draw.choice(left[len(left) // 2 :])
        return wrong


def test_the_recording_is_complete(tmp_path: Path) -> None:
    """Played back, it gives the files that are there; but for -shm, which is memory."""

    def compare(tape: Tape, *names: str) -> None:
        *_, disk = tape.disks()
        assert disk.image(tape.directory) == {name: Path(tape.directory, name).read_bytes() for name in names}

    path = Cuts(tmp_path).fresh({})
    with recorded(os.path.dirname(path)) as tape:
        with contextlib.closing(MailStore.open(path)) as store:
            Life(store, tape, 5).go_on(BURSTS)
            store._in_writer(
                lambda _conn: compare(tape, "mail.db", "mail.db-wal")
            )  # there nothing is written meanwhile
        compare(tape, "mail.db")


def lives(root: Path, count: int, points: int, seed: int) -> None:
    cuts = Cuts(root)
    for life in range(count):
        tape = cuts.live(seed + life)
        kinds = Counter(call.kind for call in tape.calls)
        assert kinds["sync"] > BURSTS, "every commit is synced"
        assert sum(call.kind == "write" and call.at == 0 and call.path.endswith("-wal") for call in tape.calls) > 3
        assert sum(call.kind == "sync" and call.path.endswith("mail.db") for call in tape.calls) > 3
        for error in cuts.cut(tape, points, seed + life):
            raise error


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    for seed in (1, 11):
        (tmp_path / str(seed)).mkdir()
        lives(tmp_path / str(seed), 2, 50, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_at_2000_points(tmp_path: Path) -> None:
    for seed in range(100, 600, 100):
        (tmp_path / str(seed)).mkdir()
        lives(tmp_path / str(seed), 4, 100, seed)


def test_a_store_that_syncs_no_commit_is_found_out(tmp_path: Path) -> None:
    """The test can fail. With NORMAL acknowledged mail is lost and nothing is damaged, as SQLite documents."""
    cuts = Cuts(tmp_path, "NORMAL")
    wrong = cuts.cut(cuts.live(1), 20, 1)
    assert len(wrong) > 3
    assert all(isinstance(error, Lost) for error in wrong)


def test_a_store_that_never_syncs_is_found_out(tmp_path: Path) -> None:
    cuts = Cuts(tmp_path, "OFF")
    wrong = cuts.cut(cuts.live(1), 20, 1)
    assert len(wrong) > 10
    assert any(isinstance(error, Damaged) for error in wrong)


def opens(cuts: Cuts, image: dict[str, bytes], at: str, there: Sequence[str] = ()) -> None:
    """The files become a store that works and holds these messages, and nothing is left beside it."""
    path = cuts.fresh(image)
    try:
        mail = Mail(path, sync=False)
        assert mail.inbox(2) == [*there]
        assert mail.send() > max(there, default="")
        mail.close()
    except MailError as error:
        raise AssertionError(f"{at}: {error} ({sorted(image)})") from error
    assert os.listdir(os.path.dirname(path)) == ["mail.db"], at


def everywhere(tape: Tape) -> Iterator[tuple[str, dict[str, bytes]]]:
    """What is left of every moment by a disk of changing temper, and by a kill alone."""
    for at, disk in enumerate(tape.disks()):
        call = tape.calls[at - 1][:2] if at else "nothing"
        mode = ("nothing", "torn", "blocks")[at % 3]
        yield f"{mode} behind {call}", disk.after_power_cut(at, mode).image(tape.directory)
        yield f"killed behind {call}", disk.after_kill().image(tape.directory)


def test_power_fails_while_the_file_is_made(tmp_path: Path) -> None:
    cuts = Cuts(tmp_path)
    path = cuts.fresh({})
    with recorded(os.path.dirname(path)) as tape:
        MailStore.open(path).close()
    assert {"create", "write", "sync", "rename", "sync_dir"} <= {call.kind for call in tape.calls}
    for at, image in everywhere(tape):
        opens(cuts, image, at)


def test_power_fails_while_a_file_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = Cuts(tmp_path)
    path = cuts.fresh({})
    mail = Mail(path)
    there = [mail.send(body=f"{number} " * 3000) for number in range(5)]
    mail.close()
    monkeypatch.setattr(schema, "VERSION", 3)
    steps = {1: "ALTER TABLE notices ADD COLUMN one TEXT", 2: "UPDATE messages SET kind = 'status'"}
    monkeypatch.setattr(
        schema, "UPGRADES", {n: lambda conn, step=step: conn.execute(step) for n, step in steps.items()}
    )
    with recorded(os.path.dirname(path)) as tape:
        MailStore.open(path).close()
    assert [call.kind for call in tape.calls].count("sync") > 3
    for at, image in everywhere(tape):
        opens(cuts, image, at, there)


def test_power_fails_while_a_file_in_the_older_journal_mode_is_opened(tmp_path: Path) -> None:
    """As a copy made by SQLite's own tools; a reader refuses what a crash in the change of the mode leaves."""
    cuts = Cuts(tmp_path)
    path = cuts.fresh({})
    mail = Mail(path)
    there = [mail.send()]
    mail.close()
    with contextlib.closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode = DELETE")
    with recorded(os.path.dirname(path)) as tape:
        MailStore.open(path).close()
    assert "mail.db-journal" in {os.path.basename(call.path) for call in tape.calls}
    for at, image in everywhere(tape):
        opens(cuts, image, at, there)
