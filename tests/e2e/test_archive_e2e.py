"""The archive of a real daemon: real git reads it, kills lose nothing and repeat nothing, trouble stops nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import ROOT, Client, DaemonProcess, Place, wait_until
from tests.support.faultyarchive import POINTS

FAULTY = (str(ROOT / "tests/support/faultyarchive.py"),)


def git(place: Place, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(place.state / "archive"), *arguments],
        env={"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def settled(client: Client, *, limit: float = 30) -> Any:
    def done() -> Any:
        status = client.call("archive.status")
        return status if status["behind"] == 0 and status["error"] is None else None

    return wait_until("the archive has caught up", done, limit=limit)


def agree(client: Client) -> None:
    verdict = client.call("archive.verify")
    assert verdict["ok"], json.dumps(verdict)


def seqs(place: Place) -> list[int]:
    """Of all commits, oldest first."""
    out = git(place, "log", "--reverse", "--format=%(trailers:key=Mbx-Seq,valueonly,separator=)", "main")
    return [int(line) for line in out.split()]


def no_change_twice(place: Place) -> None:
    found = seqs(place)
    assert found == sorted(set(found))
    # An empty commit would have its parent's tree.
    trees = git(place, "log", "--format=%T", "main").split()
    assert all(one != other for one, other in pairwise(trees))


def test_profiles_are_files_in_git(place: Place) -> None:
    daemon = place.start()
    person = daemon.person()
    made = person.call(
        "agent.create", {"project_key": "/tmp/shop", "program": "p", "model": "m", "name_hint": "GreenCastle"}
    )
    person.call("agent.register", {"project_key": "/tmp/shop", "program": "p", "model": "m", "name": "con"})
    person.register("shop-a")
    settled(person)
    person.call("admin.rename", {"name": "greencastle", "to": "blue-lake"})
    settled(person)
    whois = person.call("agent.whois", {"project_key": "shop", "agent_name": "blue-lake", "commit_limit": 1})
    assert [commit["summary"] for commit in whois["recent_commits"]] == ["rename GreenCastle to blue-lake (shop)"]
    twin = {"project_key": "/tmp/shop", "program": "p", "model": "m", "name_hint": "RedStone"}
    person.call("agent.create", twin)
    settled(person)
    whois = person.call("agent.whois", {"project_key": "shop", "agent_name": "RedStone"})
    assert [commit["summary"] for commit in whois["recent_commits"]] == ["register RedStone (shop)"], (
        "and nobody else's"
    )
    path = "projects/shop/agents/blue-lake/profile.json"
    followed = git(
        place, "log", "main", "--format=%s", "--", path, path.replace("blue-lake", "GreenCastle")
    ).splitlines()
    assert len(followed) == 2
    assert followed[0] == "rename GreenCastle to blue-lake (shop)"
    profile = json.loads(git(place, "show", f"main:{path}"))
    assert (profile["id"], profile["name"], profile["aliases"]) == (made["id"], "blue-lake", ["greencastle"])
    assert made["registration_token"] not in git(place, "log", "-p")
    assert daemon.stop() == 0
    assert git(place, "status", "--porcelain") == "", "the files are there too"
    assert json.loads((place.state / "archive" / path).read_text()) == profile
    assert (place.state / "archive/projects/shop/agents/con+2/profile.json").exists()
    assert git(place, "fsck", "--strict", "--no-dangling") == ""
    assert (place.state / "archive").stat().st_mode & 0o077 == 0
    agree(place.start().person())


def crash(place: Place, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    made = 0
    for number in range(rounds):
        point = POINTS[number % len(POINTS)]
        daemon = place.start(FAULTY, MBX_ARCHIVE_FAULT=f"{point}:{rng.randint(1, 2)}")
        try:
            client = daemon.person()
            for _ in range(rng.randint(1, 12)):
                client.register(f"shop-{made}")
                made += 1
                if rng.random() < 0.3:
                    client.call("admin.rename", {"name": f"shop-{made - 1}", "to": f"other-{made - 1}"})
            settled(client, limit=5)
            daemon.kill()  # the point was not met: between log and archive, or just anywhere
        except (ConnectionError, OSError):
            daemon.process.wait(30)
            made += 1  # perhaps made, perhaps not
        place.forget(daemon)
    daemon = place.start()
    client = daemon.person()
    settled(client)
    agree(client)
    no_change_twice(place)
    listed = client.call("identity.list", {"all": True})
    files = git(place, "ls-tree", "-r", "--name-only", "main").split()
    assert sum(path.endswith("profile.json") for path in files) == client.call("status")["identities"]
    for row in listed["identities"]:
        assert f"projects/shop/agents/{row['name']}/profile.json" in files
    assert daemon.stop() == 0


@pytest.mark.timeout(300)
def test_kills_at_every_step_of_a_batch(place: Place) -> None:
    crash(place, 15, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_kills_at_every_step_of_a_batch(place: Place) -> None:
    crash(place, 200, seed=2)


def test_a_kill_between_log_and_archive(place: Place) -> None:
    daemon = place.start()
    client = daemon.person()
    client.register("shop-a")
    settled(client)
    client.register("shop-b")
    daemon.kill()  # within the time that a change waits for others
    client = place.start().person()
    settled(client)
    agree(client)
    no_change_twice(place)


def trouble(client: Client, word: str) -> Any:
    def found() -> Any:
        status = client.call("archive.status")
        return status if word in (status["error"] or "") else None

    return wait_until(f"the archive says {word}", found)


def test_without_git(place: Place) -> None:
    empty = place.root / "bin"
    empty.mkdir()
    daemon = place.start(PATH=str(empty))
    client = daemon.person()
    client.register("shop-a")
    trouble(client, "git was not found")
    assert "git was not found" in client.call("status")["degraded"][0]
    whois = client.call("agent.whois", {"project_key": "/tmp/shop", "agent_name": "shop-a"})
    assert whois["recent_commits"] is None
    program = shutil.which("git")
    assert program is not None
    (empty / "git").symlink_to(program)
    settled(client, limit=70)
    agree(client)
    assert client.call("status")["degraded"] == []


def test_a_locked_repository(place: Place) -> None:
    daemon = place.start()
    client = daemon.person()
    client.register("shop-a")
    settled(client)
    lock = place.state / "archive/.git/refs/heads/main.lock"
    lock.touch()
    client.register("shop-b")
    assert trouble(client, "main.lock")["behind"] is None
    lock.unlink()
    settled(client)
    agree(client)
    no_change_twice(place)


def test_a_broken_repository_is_rebuilt(place: Place) -> None:
    daemon = place.start()
    client = daemon.person()
    client.register("shop-a")
    settled(client)
    client.call("admin.rename", {"name": "shop-a", "to": "shop-z"})
    settled(client)
    for pack in (place.state / "archive/.git/objects/pack").glob("*.pack"):
        pack.unlink()
    client.register("shop-b")
    wait_until("the archive is in trouble", lambda: client.call("archive.status")["error"])
    assert not client.call("archive.verify")["ok"]
    result = client.call("archive.rebuild")
    assert result["commits"] == 2
    assert (place.state / "archive.old/.git").is_dir()
    settled(client)
    agree(client)
    assert len(client.call("archive.log", {"name": "shop-z", "limit": 9})["commits"]) == 2


@pytest.mark.parametrize("what", ["all", ".git", ".git/refs/heads/main"])
def test_something_deleted(place: Place, what: str) -> None:
    daemon = place.start()
    client = daemon.person()
    client.register("shop-a")
    settled(client)
    wait_until("the files are checked out", lambda: not git(place, "status", "--porcelain"))
    gone = place.state / "archive" if what == "all" else place.state / "archive" / what
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    client.register("shop-b")
    settled(client)
    agree(client)
    no_change_twice(place)


def by_hand(place: Place, *arguments: str) -> None:
    """What a person does, again while the daemon checks files out."""

    def done() -> bool:
        try:
            git(place, "-c", "user.name=p", "-c", "user.email=p@example.org", *arguments)
        except subprocess.CalledProcessError as error:
            if "index.lock" not in error.stderr:
                raise
            return False
        return True

    wait_until("git works", done)


def test_a_persons_commits_and_branches(place: Place) -> None:
    daemon = place.start()
    client = daemon.person()
    client.register("shop-a")
    client.register("shop-b")
    settled(client)
    where = place.state / "archive"
    profile = where / "projects/shop/agents/shop-a/profile.json"
    wait_until("the files are checked out", profile.exists)
    profile.write_text("{}")
    (where / "README").write_text("mine")
    by_hand(place, "add", ".")
    by_hand(place, "commit", "-qm", "mine")
    client.register("shop-c")
    settled(client)
    agree(client)
    assert git(place, "show", "main:README") == "mine"
    by_hand(place, "checkout", "-q", "-b", "aside")
    client.register("shop-d")
    settled(client)
    agree(client)
    wait_until("it says why the files are old", lambda: client.call("archive.status")["checkout_error"])
    by_hand(place, "checkout", "-q", "main")
    by_hand(place, "reset", "-q", "--hard", "HEAD~2")
    client.register("shop-e")
    settled(client)
    agree(client)


def test_a_lost_log(place: Place) -> None:
    daemon = place.start()
    client = daemon.person()
    for name in ("shop-a", "shop-b", "shop-c"):
        client.register(name)
    settled(client)
    assert daemon.stop() == 0
    shutil.rmtree(place.state / "registry")
    client = place.start().person()
    client.register("shop-x")
    settled(client)
    agree(client)
    assert "was ahead of the log" in git(place, "log", "-2", "--format=%B")


def test_a_stop_waits_for_no_git(place: Place) -> None:
    slow = place.root / "bin"
    slow.mkdir()
    (slow / "git").write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 60\n")
    (slow / "git").chmod(0o755)
    daemon: DaemonProcess = place.start(PATH=str(slow))
    daemon.person().register("shop-a")
    assert daemon.process.poll() is None
    assert daemon.stop() == 0  # within the patience of the harness, which is half of git's minute


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_registrations(place: Place) -> None:
    daemon = place.start()
    client = daemon.person()
    for start in range(0, 10_000, 50):
        numbers = [
            client.send("identity.register", {"name": f"shop-{n}", "role": "x"}) for n in range(start, start + 50)
        ]
        for number in numbers:
            client.reply(number)
    settled(client, limit=30)
    packs = list(Path(place.state / "archive/.git/objects/pack").glob("*.pack"))
    assert len(packs) <= 33
    assert daemon.stop() == 0
    client = place.start().person()
    agree(client)
    no_change_twice(place)
