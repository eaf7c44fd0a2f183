"""A daemon on the state of a release, and on that of a newer build: it goes on, or leaves everything as it is."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from mbxd.mail import schema
from tests.golden.test_released import NAMES, RELEASES, unpacked, unpacked_archive
from tests.support.builds import Build
from tests.support.daemon import DaemonProcess, Place, environment, image, wait_until
from tests.support.trees import Forest

KEPT = ("registry/", "mail.db", "archive/")


def lay_out(release: Path, place: Place) -> None:
    """The state directory as a daemon of the release left it."""
    place.state.mkdir(mode=0o700)
    shutil.copytree(release / "registry", place.state / "registry")
    place.state.joinpath("registry").chmod(0o700)
    for file in (place.state / "registry").iterdir():
        file.chmod(0o600)
    unpacked(release, place.state)
    unpacked_archive(release, place.state)


def stored(place: Place) -> dict[str, bytes]:
    """All that lasts, by path."""
    return {path: data for path, data in image(place.state).items() if path.startswith(KEPT)}


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_a_daemon_goes_on_with_what_a_release_left(place: Place, forest: Forest, release: Path) -> None:
    lay_out(release, place)
    registry, mail, archive = (
        json.loads((release / f"{what}.json").read_text()) for what in ("registry", "mail", "archive")
    )
    for _ in range(2):
        daemon = place.start()
        person = daemon.person()
        rows = person.call("identity.list", {"all": True})["identities"]
        then = {one["name"]: one for one in registry["identities"]}
        assert {row["name"]: row["id"] for row in rows} == {name: one["id"] for name, one in then.items()}
        assert {row["name"]: row["role"] for row in rows} == {name: one["role"] for name, one in then.items()}
        assert {row["state"] for row in rows} == {"vacant", "retired"}, "that boot is over"
        for one in then.values():
            expected = mail["inboxes"].get(str(one["id"]), [])
            inbox = person.call("mail.peek", {"name": one["address"], "limit": 100})["messages"]
            assert sorted(letter["id"] for letter in inbox)[: len(expected)] == expected, "then notices of this boot"
        assert person.call("archive.verify")["ok"] is True
        commits = person.call("archive.log", {"limit": 100})["commits"]
        assert [one["hexsha"] for one in commits] == [one[0] for one in archive["commits"]], "nothing was made anew"
        assert person.call("status")["degraded"] == []
        assert daemon.stop() == 0
    daemon = place.start()
    client = forest.session(daemon).client
    granted = client.call("identity.claim", {"name": "shop-backend"})
    assert granted["epoch"] == then["shop-backend"]["epoch"] + 1
    assert granted["unread"] >= mail["unread"]["1"]
    assert granted["predecessor"]["client"] == "claude-code"
    daemon.person().call("admin.rename", {"name": "shop-backend", "to": "shop-api"})
    wait_until("it is archived", lambda: archived(daemon) == "rename shop-backend to shop-api (shop)")


def archived(daemon: DaemonProcess) -> str:
    """The newest commit."""
    return str(daemon.person().call("archive.log", {"limit": 1})["commits"][0]["summary"])


def of_a_newer_format(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[8:12] = b"\x02\0\x02\0"  # version and oldest reader: docs/wal-format.md, section 3
    file.write_bytes(data)


@pytest.mark.parametrize("what", ["*.wal", "*.snap"])
def test_a_newer_registry_leaves_everything_as_it_is(place: Place, what: str) -> None:
    lay_out(RELEASES[0], place)
    of_a_newer_format(max((place.state / "registry").glob(what)))
    before = stored(place)
    refused = place.start(wait=False)
    said = refused.wait_ready(must=False)
    assert refused.process.wait(30) == 1
    assert re.search(r"version 2.*up to 1.*Nothing was changed.*newer", said), said
    assert stored(place) == before


@pytest.mark.parametrize("verb", ["dump", "verify", "repair"])
def test_nor_do_the_tools_change_a_newer_registry(place: Place, verb: str) -> None:
    lay_out(RELEASES[0], place)
    of_a_newer_format(max((place.state / "registry").glob("*.wal")))
    before = stored(place)
    command = [sys.executable, "-m", "mbxd", "log", verb]
    done = subprocess.run(
        command, env=environment(place.state), capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    assert done.returncode != 0
    assert re.search(r"version 2.*up to 1.*Nothing was changed.*newer", done.stderr), done
    assert stored(place) == before


def test_newer_mail_is_left_alone_and_names_go_on(place: Place, forest: Forest) -> None:
    lay_out(RELEASES[0], place)
    with closing(sqlite3.connect(place.state / "mail.db")) as conn:
        conn.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = stored(place)["mail.db"]
    daemon = place.start()
    client = forest.session(daemon).client
    client.claim("shop-backend")
    refused = client.refused("mail.inbox")
    told = f"schema version {schema.VERSION + 1}.*up to {schema.VERSION}.*left as it is.*newer mbxd"
    assert re.search(told, json.dumps(refused.body)), refused.body
    assert re.search(told, str(client.call("status")["degraded"]))
    assert daemon.stop() == 0
    assert stored(place)["mail.db"] == before
    assert not [path for path in stored(place) if path.startswith("mail.db-")]


def test_a_newer_repository_is_left_alone_and_names_go_on(place: Place, forest: Forest) -> None:
    """Git's own format has a number: gitrepository-layout(5)."""
    lay_out(RELEASES[0], place)
    config = place.state / "archive/.git/config"
    config.write_text(config.read_text().replace("repositoryformatversion = 0", "repositoryformatversion = 9"))
    before = {path: data for path, data in stored(place).items() if path.startswith("archive/")}
    daemon = place.start()
    client = forest.session(daemon).client
    client.claim("shop-backend")
    person = daemon.person()
    person.call("admin.rename", {"name": "shop-tester", "to": "shop-checker"})
    told = "newer Git made the repository.*left as it is: install that Git.*mbxctl archive rebuild"
    wait_until("it is told", lambda: re.search(told, str(person.call("status")["degraded"])))
    assert {path: data for path, data in stored(place).items() if path.startswith("archive/")} == before
    aside = Path(person.call("archive.rebuild")["set_aside"])
    assert {f"archive/{path}": data for path, data in image(aside).items()} == before
    assert person.call("archive.verify")["ok"] is True
    assert daemon.stop() == 0


def test_an_upgrade_keeps_everything_and_going_back_is_refused(place: Place, forest: Forest) -> None:
    """A newer build of every format: it takes over, and afterwards this one leaves all as it is."""
    newer = Build(place.root / "newer", "9.0.0")
    newer.edit("mbxd/store/format.py", 'VERSION = 1\n"""', 'VERSION = 2\n"""')
    newer.edit("mbxd/mail/schema.py", "VERSION: Final = 1", "VERSION: Final = 2")
    step = "lambda conn: conn.execute('CREATE TABLE later (a)')"
    newer.edit("mbxd/mail/schema.py", "None]]] = {}", f"object]]] = {{1: {step}}}")
    daemon = place.start()
    speaker = forest.session(daemon)
    speaker.client.register("shop-a")
    sent = speaker.client.call("mail.send", {"to": ["shop-a"], "subject": "s", "body": "before"})["id"]
    assert daemon.stop() == 0
    daemon = place.start(PYTHONPATH=newer.path)
    client = speaker.reconnect(daemon)
    assert client.call("identity.list")["you"]["epoch"] == 1
    assert client.call("mail.read", {"ids": [sent]})["messages"][0]["body"] == "before"
    client.release()
    assert client.claim("shop-a")["epoch"] == 2
    assert daemon.person().call("status")["degraded"] == []
    assert daemon.stop() == 0
    before = stored(place)
    refused = place.start(wait=False)
    said = refused.wait_ready(must=False)
    assert refused.process.wait(30) == 1
    assert re.search(r"version 2.*up to 1.*Nothing was changed.*newer mbxd.*restore", said), said
    assert stored(place) == before
    daemon = place.start(PYTHONPATH=newer.path)
    assert speaker.reconnect(daemon).call("identity.list")["you"]["epoch"] == 2
