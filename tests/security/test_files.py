"""What lies in place of a file of ours is neither followed nor waited for, nor written to: it is named."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from mbx_client import launch, paths
from mbxd.ownfile import NotOurs, check_own, check_own_directory, open_own
from tests.security import parties
from tests.security.strangers import UID, needs_root
from tests.support.daemon import Place, wait_until
from tests.support.trees import Forest

PRECIOUS = b"precious\n"
WORDS = {
    "link": "is a symbolic link, not a plain file: move it away",
    "pipe": "is a named pipe, not a plain file: move it away",
    "socket": "is a socket, not a plain file: move it away",
    "directory": "is a directory, not a plain file: move it away",
    "hard link": "has another name too (hard link)",
    "device": "is a device, not a plain file: move it away",
    "foreign": f"belongs to uid {UID}, not to you",
}
ROOT_ONLY = {"device", "foreign"}
KINDS = [pytest.param(kind, marks=needs_root) if kind in ROOT_ONLY else kind for kind in WORDS]
FEW = ["link", "pipe", "hard link"]
"""For what takes a daemon; `test_opening` has them all."""


def plant(kind: str, path: Path, target: Path) -> None:
    """Put something else in the place of a file. `target`: whose contents must survive, where it leads elsewhere."""
    contents = path.read_bytes() if path.is_file() else PRECIOUS
    path.unlink(missing_ok=True)
    if kind in {"link", "hard link"}:
        target.write_bytes(contents)
        target.chmod(0o600)
    match kind:
        case "link":
            path.symlink_to(target)
        case "hard link":
            os.link(target, path)
        case "pipe":
            os.mkfifo(path, 0o600)
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "directory":
            path.mkdir(mode=0o700)
        case "device":
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, null(4)
        case _:
            path.write_bytes(contents)
            path.chmod(0o600)
            os.chown(path, UID, UID)


def used(place: Place, forest: Forest) -> None:
    """A state directory in which something happened, and no daemon."""
    daemon = place.start()
    forest.session(daemon).client.register("shop-a")
    person = daemon.person()
    wait_until("the archive has it", lambda: person.call("archive.status")["behind"] == 0)
    wait_until("the spare is made", (place.state / "registry/next.spare").exists)
    assert daemon.stop() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_opening(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "file", tmp_path / "target"
    plant(kind, path, target)
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND | os.O_CREAT):
        with pytest.raises(NotOurs) as caught:
            os.close(open_own(str(path), flags))
        assert WORDS[kind] in str(caught.value)
        with pytest.raises(PermissionError) as refused:
            os.close(paths.open_own(str(path), flags))
        assert str(refused.value) == str(caught.value)
    with pytest.raises(NotOurs):
        check_own(str(path))
    if target.exists():
        assert target.read_bytes() == PRECIOUS


def test_a_plain_file_is_opened(tmp_path: Path) -> None:
    for opener in (open_own, paths.open_own):
        path = str(tmp_path / opener.__module__)
        fd = opener(path, os.O_RDWR | os.O_CREAT)
        assert not os.get_inheritable(fd)
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
        os.close(fd)
        check_own(path)
        with pytest.raises(FileNotFoundError):
            opener(f"{path}.none", os.O_RDONLY)
    check_own(str(tmp_path / "none"))
    check_own_directory(str(tmp_path))


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("name", ["mbxd.lock", "key", "wal"])
def test_no_start_upon_it(place: Place, forest: Forest, name: str, kind: str) -> None:
    used(place, forest)
    path = place.state / name if name != "wal" else next((place.state / "registry").glob("*.wal"))
    target = place.root / "target"
    plant(kind, path, target)
    before = target.read_bytes() if target.exists() else b""
    said = parties.daemon(place)
    assert f"{path} {WORDS[kind]}" in said
    if target.exists():
        assert target.read_bytes() == before


@pytest.mark.parametrize("kind", ["link", "pipe", "hard link"])
def test_what_the_log_can_do_without_is_not_written_to(place: Place, forest: Forest, kind: str) -> None:
    """The preallocated segment: another one is made, or the start is refused by name."""
    used(place, forest)
    path, target = place.state / "registry/next.spare", place.root / "target"
    plant(kind, path, target)
    before = target.read_bytes() if target.exists() else b""
    daemon = place.start(wait=False)
    said = daemon.wait_ready(must=False)
    if said == "ready":
        assert daemon.person().rows()["shop-a"]["state"] == "vacant"
        forest.session(daemon).client.claim("shop-a")
    else:
        assert str(path) in said
    if target.exists():
        assert target.read_bytes() == before


@pytest.mark.parametrize("what", ["registry", "archive", "archive/.git"])
@pytest.mark.parametrize("kind", ["link", "loose"])
def test_directories_of_ours(place: Place, forest: Forest, what: str, kind: str) -> None:
    used(place, forest)
    path, target = place.state / what, place.root / "target"
    if kind == "link":
        path.rename(target)
        path.symlink_to(target)
    else:
        path.chmod(0o777)
    words = f"{path} " + ("is a symbolic link" if kind == "link" else "can be written by others (mode 0777)")
    if what == "registry":
        assert words in parties.daemon(place)
        return
    daemon = place.start()
    forest.session(daemon).client.register("shop-b")
    person = daemon.person()
    told = wait_until("it says so", lambda: [one for one in person.call("status")["degraded"] if words in one])
    assert told
    assert person.rows()["shop-b"]["state"] == "live"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mail.db", "pipe"),
        ("mail.db", "hard link"),
        ("mail.db-wal", "link"),
        ("mail.db-wal", "hard link"),
        ("mail.db-shm", "link"),
        ("mail.db-journal", "pipe"),
    ],
)
def test_mail_alone_stops(place: Place, forest: Forest, name: str, kind: str) -> None:
    place.state.mkdir(mode=0o700)
    target = place.root / "target"
    plant(kind, place.state / name, target)
    daemon = place.start()
    client = forest.session(daemon).client
    client.register("shop-a")
    refusal = client.refused("mail.inbox")
    assert refusal.code == "MAIL_UNAVAILABLE"
    assert f"{place.state / name} {WORDS[kind]}" in refusal.body["message"]
    if target.exists():
        assert target.read_bytes() == PRECIOUS


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "hard link"])
def test_something_else_at_the_sockets_place(place: Place, kind: str) -> None:
    (place.state / "run").mkdir(parents=True, mode=0o700)
    place.state.chmod(0o700)
    plant(kind, place.state / "run/mbxd.sock", place.root / "target")
    assert "is in the way and is no socket of yours: move it away" in parties.daemon(place)


@needs_root
def test_a_socket_of_somebody_else(place: Place) -> None:
    (place.state / "run").mkdir(parents=True, mode=0o700)
    place.state.chmod(0o700)
    path = place.state / "run/mbxd.sock"
    os.mknod(path, stat.S_IFSOCK | 0o777)
    os.chown(path, UID, UID)
    assert "is in the way and is no socket of yours" in parties.daemon(place)
    assert path.exists()


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("name", ["start.lock", "mbxd.log"])
def test_starting_through_it_is_refused(place: Place, name: str, kind: str) -> None:
    place.state.mkdir(mode=0o700)
    target = place.root / "target"
    plant(kind, place.state / name, target)
    done = parties.mbxctl(place, "start", "--json")
    assert done.returncode == 69, done
    message = json.loads(done.stdout)["error"]["message"]
    assert f"{place.state / name} {WORDS[kind]}" in message
    if target.exists():
        assert target.read_bytes() == PRECIOUS


@pytest.mark.parametrize("kind", KINDS)
def test_marks_and_pointers_of_others_say_nothing(place: Place, kind: str) -> None:
    place.state.mkdir(mode=0o700)
    boot = paths.boot_id().encode()
    where = paths.resolve({"MBX_STATE_DIR": str(place.state)})
    for name, contents in (
        ("stopped", boot),
        ("start.failed", b"because"),
        ("daemon.json", b'{"socket": "/theirs", "pid": 5}'),
    ):
        (place.state / name).write_bytes(contents)
    assert launch.is_stopped(where)
    assert launch.recent_failure(where)
    assert paths.read_pointer(where)
    for name in ("stopped", "start.failed", "daemon.json"):
        plant(kind, place.state / name, place.root / f"{name}.target")
    assert not launch.is_stopped(where)
    assert launch.recent_failure(where) is None
    assert paths.read_pointer(where) is None
    assert [one.path for one in paths.candidates(where)] == [where.socket]


@pytest.mark.parametrize("kind", ["pipe", "directory", pytest.param("device", marks=needs_root)])
def test_a_configuration_that_is_no_file_holds_nobody_up(place: Place, kind: str) -> None:
    path = place.config("")
    path.unlink()
    plant(kind, path, place.root / "target")
    assert f"{path} " in parties.doctor(place)
    status: dict[str, Any] = place.start().person().call("status")
    assert str(path) in status["config_error"]


def test_a_configuration_may_be_a_link(place: Place) -> None:
    """As people keep it who have all such files in one repository."""
    path = place.config("[liveness]\ndetach_grace_s = 7\n")
    path.rename(place.root / "dotfile")
    path.symlink_to(place.root / "dotfile")
    assert place.start().person().call("status")["config_error"] is None


def test_offline_tools_refuse_the_same_places(place: Place, forest: Forest) -> None:
    import subprocess
    import sys

    from tests.support.daemon import environment

    used(place, forest)
    shutil.move(place.state, place.root / "real")
    place.state.symlink_to(place.root / "real")
    done = subprocess.run(
        [sys.executable, "-m", "mbxd", "log", "verify"],
        env=environment(place.state),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "is a symbolic link: name the real directory" in done.stderr
