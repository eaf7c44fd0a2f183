"""Kill -9 under load, power cuts behind an acknowledgement, and a disk with no room."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mbxd.mail.store import MailStore
from tests.mail.support import Mail, letter
from tests.mail.victim import IN_FLIGHT, command

ROOT = Path(__file__).parents[2]
WAIT_S = 60


def victim(path: str, run: str, limit: int | None = None) -> subprocess.Popen[bytes]:
    """The process; its files may grow to `limit` bytes."""

    def narrow() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [sys.executable, "-m", "tests.mail.victim", path, run],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'client'}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=narrow,  # noqa: PLW1509 - no other thread of ours holds a lock here
    )


def kill_after(process: subprocess.Popen[bytes], count: int) -> dict[str, str]:
    """Keys and ids that were acknowledged before the kill, which falls somewhere behind `count` of them."""
    assert process.stdout is not None
    try:
        begun = b"".join(process.stdout.readline() for _ in range(count))
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    lines = (begun + rest).decode().splitlines(keepends=True)
    assert len(lines) >= count
    return dict(line.split() for line in lines if line.endswith("\n"))


def all_there_once(mail: Mail, acked: dict[str, str], run: str) -> None:
    """Every acknowledged message exists once, and no retry makes a second one."""
    assert mail.store.check().problems == []
    newest = max((int(key.split("-")[1]) for key in acked), default=-1)
    for number in range(newest + 1 + IN_FLIGHT):
        key = f"{run}-{number}"
        sent = mail.sent(command(key))
        assert sent.id == acked.get(key, sent.id)
        assert sent.duplicate or key not in acked
    rows = "SELECT key FROM messages WHERE key IS NOT NULL UNION ALL SELECT key FROM pruned WHERE key IS NOT NULL"
    keys = mail.store._in_writer(lambda conn: [key for (key,) in conn.execute(rows)])
    assert len(keys) == len(set(keys))
    assert {f"{run}-{number}" for number in range(newest + 1 + IN_FLIGHT)} <= set(keys)
    assert mail.store.check().problems == []


def rounds(path: str, count: int, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(count):
        acked = kill_after(victim(path, f"run{number}"), draw.choice((1, 20, 100, draw.randrange(1, 700))))
        mail = Mail(path)
        all_there_once(mail, acked, f"run{number}")
        mail.close()


@pytest.mark.timeout(600)
def test_kills_lose_and_double_nothing(path: str) -> None:
    rounds(path, 30, 1)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    for number in range(10):
        rounds(str(tmp_path / f"{number}.db"), 50, number)


def test_a_power_cut_right_behind_an_acknowledgement(path: str, tmp_path: Path) -> None:
    """What the WAL held at the acknowledgement is enough, whatever the disk made of later writes."""
    mail = Mail(path)
    acked, draw = [], random.Random(7)
    for number in range(40):
        acked.append(mail.send(body=f"{number} " * 100, needs_reply=True))
        size = os.path.getsize(f"{path}-wal")
        if number % 4:
            continue
        mail.send(key=f"late{number}", body="late " * 200)
        cut = tmp_path / f"cut{number}"
        cut.mkdir()
        shutil.copy(path, cut / "mail.db")
        whole = Path(f"{path}-wal").read_bytes()
        later = bytearray(whole[size:])
        for place in range(0, len(later), 512):  # sectors that were not synced hold old, new or no data
            if draw.random() < 0.5:
                later[place : place + 512] = bytes(len(later[place : place + 512]))
        (cut / "mail.db-wal").write_bytes(whole[:size] + bytes(later[: draw.randrange(len(later) + 1)]))
        again = Mail(str(cut / "mail.db"))
        found = again.inbox(2, limit=200)
        assert found[: len(acked)] == acked or set(acked) <= set(found)
        assert again.send() > acked[-1]
        again.close()
    mail.close()


@pytest.mark.parametrize("limit", [300_000, 1_000_000, 2_500_000])
def test_no_room_in_the_middle(path: str, limit: int) -> None:
    MailStore.open(path).close()
    process = victim(path, "full", limit)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (3, b"MailFull\n")
    acked = dict(line.split() for line in out.decode().splitlines())
    assert acked
    mail = Mail(path)
    all_there_once(mail, acked, "full")
    mail.close()


def test_no_room_and_then_room_in_one_process(path: str) -> None:
    """Works again without a restart. In a child: the limit is the whole process's."""
    code = f"""
import resource, signal
from mbxd.mail.errors import MailFull
from tests.mail.support import Mail, letter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
mail = Mail({path!r})
first = mail.send(key="first")
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
refused = 0
for number in range(40):
    try:
        mail.send(key=f"k{{number}}", body="words " * 3000)
    except MailFull:
        refused += 1
assert refused > 5, refused
assert len(mail.inbox(2, limit=200)) == 41 - refused == mail.store.unread(2)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for number in range(40):
    mail.send(key=f"k{{number}}", body="words " * 3000)
assert len(mail.inbox(2, limit=200)) == 41 == mail.store.unread(2)
mail.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'client'}:{ROOT}"},
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_a_clean_end_leaves_one_file(path: str) -> None:
    mail = Mail(path)
    mail.sent(letter())
    mail.close()
    assert sorted(os.listdir(os.path.dirname(path))) == ["mail.db"]
