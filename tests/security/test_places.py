"""Places that somebody else could exchange, or has filled, are refused by whoever would trust them."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mbx_client import project
from mbx_wire import places
from mbxctl import checks_place
from mbxd import config
from tests.security import parties
from tests.security.strangers import UID, WHO, environment, interpreter, needs_root, python
from tests.support.daemon import Place, image

Env = dict[str, str]


def foreign_parent(place: Place) -> tuple[Env, str]:
    (place.root / "theirs").mkdir(mode=0o755)
    (place.root / "theirs/s").mkdir(mode=0o700)
    os.chown(place.root / "theirs", UID, UID)
    said = f"/theirs belongs to uid {UID}, who can replace what is in it: run this as that user, or choose"
    return {"MBX_STATE_DIR": str(place.root / "theirs/s")}, said


def foreign_grandparent(place: Place) -> tuple[Env, str]:
    (place.root / "theirs/mine/s").mkdir(parents=True, mode=0o700)
    os.chown(place.root / "theirs", UID, UID)
    return {"MBX_STATE_DIR": str(place.root / "theirs/mine/s")}, f"/theirs belongs to uid {UID}"


def foreign_state(place: Place) -> tuple[Env, str]:
    """Somebody was quicker in a directory like /tmp."""
    place.root.chmod(0o1777)
    place.state.mkdir(mode=0o777)
    os.chown(place.state, UID, UID)
    return {}, f"belongs to uid {UID}"


def foreign_link(place: Place) -> tuple[Env, str]:
    place.root.chmod(0o1777)
    (place.root / "real/s").mkdir(parents=True, mode=0o700)
    (place.root / "link").symlink_to(place.root / "real")
    os.lchown(place.root / "link", UID, UID)
    return {"MBX_STATE_DIR": str(place.root / "link/s")}, f"is a symbolic link of uid {UID}"


def foreign_group(place: Place) -> tuple[Env, str]:
    (place.root / "shared/s").mkdir(parents=True, mode=0o700)
    os.chown(place.root / "shared", -1, UID)
    (place.root / "shared").chmod(0o770)
    return {"MBX_STATE_DIR": str(place.root / "shared/s")}, "/shared can be written by others (mode 0770)"


def loose_parent(place: Place) -> tuple[Env, str]:
    (place.root / "loose/s").mkdir(parents=True, mode=0o700)
    (place.root / "loose").chmod(0o777)
    return {"MBX_STATE_DIR": str(place.root / "loose/s")}, "/loose can be written by others (mode 0777)"


def loose_behind_a_link(place: Place) -> tuple[Env, str]:
    (place.root / "loose/s").mkdir(parents=True, mode=0o700)
    (place.root / "loose").chmod(0o757)
    (place.root / "link").symlink_to("./../" + place.root.name + "/loose")
    return {"MBX_STATE_DIR": str(place.root / "link/s")}, "/loose can be written by others (mode 0757)"


def loose_state(place: Place) -> tuple[Env, str]:
    place.state.mkdir()
    place.state.chmod(0o770)
    return {}, "/s can be written by others (mode 0770): chmod 700 it"


def linked_state(place: Place) -> tuple[Env, str]:
    (place.root / "real").mkdir(mode=0o700)
    place.state.symlink_to("real")
    return {}, "/s is a symbolic link: name the real directory"


OURS = (loose_parent, loose_behind_a_link, loose_state, linked_state)
THEIRS = (foreign_parent, foreign_grandparent, foreign_state, foreign_link, foreign_group)
CASES = [*OURS, *(pytest.param(case, marks=needs_root) for case in THEIRS)]


@pytest.mark.parametrize("case", CASES)
def test_everybody_refuses_it_and_says_why(place: Place, case: Callable[[Place], tuple[Env, str]]) -> None:
    env, words = case(place)
    before = image(place.root)
    for name, party in parties.REFUSING.items():
        said = party(place, **env)
        assert words in said, name
        assert "\n" not in said or name == "doctor"
    parties.hook(place, **env)
    after = {path: data for path, data in image(place.root).items() if not path.startswith("daemon-")}
    assert after == before, "nothing was made or changed there"


@pytest.mark.parametrize("what", ["link", "loose", pytest.param("foreign", marks=needs_root)])
def test_the_sockets_directory_is_ours_alone(place: Place, what: str) -> None:
    run = place.root / "run"
    if what == "link":
        (place.root / "real").mkdir(mode=0o700)
        run.symlink_to("real")
    else:
        run.mkdir(mode=0o700)
        if what == "loose":
            run.chmod(0o720)
        else:
            os.chown(run, UID, UID)
    said = parties.daemon(place, MBX_SOCKET=str(run / "mbxd.sock"))
    assert said.startswith(f"the socket's directory {run} ")
    assert {"link": "is a symbolic link", "loose": "mode 0720", "foreign": str(UID)}[what] in said
    assert not list(run.iterdir())


@needs_root
def test_the_way_to_the_socket_is_looked_at(place: Place) -> None:
    """As for a runtime directory that a session manager did not make."""
    (place.root / "runtime").mkdir(mode=0o755)
    os.chown(place.root / "runtime", UID, UID)
    said = parties.daemon(place, MBX_SOCKET=str(place.root / "runtime/mbx/mbxd.sock"))
    assert f"/runtime belongs to uid {UID}, who can replace what is in it" in said
    assert not list((place.root / "runtime").iterdir())


def test_a_shared_temporary_directory_is_no_reason(place: Place) -> None:
    place.root.chmod(0o1777)
    old = os.umask(0)
    try:
        daemon = place.start()
    finally:
        os.umask(old)
    assert daemon.person().call("ping")["pong"]
    for folder, folders, files in os.walk(place.state):
        for name in (*folders, *files):
            assert not stat.S_IMODE(os.lstat(f"{folder}/{name}").st_mode) & 0o077, name


def test_directories_on_the_way_are_made_for_us_alone(place: Place) -> None:
    old = os.umask(0)
    try:
        place.start(MBX_STATE_DIR=str(place.root / "a/b/s"))
    finally:
        os.umask(old)
    for path in ("a", "a/b", "a/b/s"):
        assert stat.S_IMODE((place.root / path).stat().st_mode) == 0o700


# --- the rule itself ------------------------------------------------------------------------------------


class Made:
    """lstat's answer."""

    def __init__(self, kind: int, mode: int, uid: int, gid: int) -> None:
        self.st_mode, self.st_uid, self.st_gid, self.st_nlink = kind | mode, uid, gid, 1


def way(path: str, tree: dict[str, tuple[int, int, int, str]], trusted: frozenset[int] = frozenset({0})) -> str | None:
    """`parent_problem` for uid 7 with group 7 in a tree of path -> (mode, uid, gid, target of a link)."""

    def lstat(at: str) -> Made:
        if at not in tree:
            raise FileNotFoundError(at)
        mode, uid, gid, target = tree[at]
        return Made(stat.S_IFLNK if target else stat.S_IFDIR, mode, uid, gid)

    return places.parent_problem(path, 7, {0, 7}, lstat, lambda at: tree[at][3], trusted)


ROOT = (0o755, 0, 0, "")
MINE = (0o755, 7, 7, "")


@pytest.mark.parametrize(
    ("path", "tree", "problem"),
    [
        ("/h/s", {"/": ROOT, "/h": MINE}, None),
        ("/h/s", {"/": ROOT, "/h": (0o775, 7, 7, "")}, None),  # the group of nobody else
        ("/h/s", {"/": ROOT, "/h": (0o775, 0, 0, "")}, None),
        ("/h/s", {"/": ROOT, "/h": (0o775, 7, 8, "")}, "/h can be written by others"),
        ("/h/s", {"/": ROOT, "/h": (0o1777, 0, 0, "")}, None),
        ("/h/s", {"/": ROOT, "/h": (0o1777, 8, 8, "")}, "/h belongs to uid 8"),  # its owner may rename in it
        ("/h/s", {"/": (0o777, 0, 0, "")}, "/ can be written by others"),
        ("/h/new/s", {"/": ROOT, "/h": MINE}, None),
        ("/h/new/s", {"/": ROOT, "/h": (0o777, 7, 7, "")}, "/h can be written by others"),
        ("/l/s", {"/": ROOT, "/l": (0o777, 0, 0, "/h"), "/h": MINE}, None),
        ("/l/s", {"/": ROOT, "/l": (0o777, 0, 0, "h/.."), "/h": MINE}, None),
        ("/l/s", {"/": ROOT, "/l": (0o777, 8, 0, "/h"), "/h": MINE}, "/l is a symbolic link of uid 8"),
        ("/l/s", {"/": ROOT, "/l": (0o777, 0, 0, "/h"), "/h": (0o755, 8, 8, "")}, "/h belongs to uid 8"),
        ("/h/../x/s", {"/": ROOT, "/h": MINE, "/x": (0o755, 8, 8, "")}, "/x belongs to uid 8"),
        ("/h//./s/", {"/": ROOT, "/h": MINE}, None),
        ("/l/s", {"/": ROOT, "/l": (0o777, 7, 7, "/l")}, "too many symbolic links"),
        ("/", {"/": ROOT}, None),
    ],
)
def test_who_could_exchange_it(path: str, tree: dict[str, tuple[int, int, int, str]], problem: str | None) -> None:
    found = way(path, tree)
    assert found is None if problem is None else problem in str(found)


def test_root_under_another_uid_in_a_user_namespace() -> None:
    tree = {"/": (0o755, 65534, 65534, ""), "/h": MINE}
    assert way("/h/s", tree, places.roots("         0          0 4294967295\n", "65534\n")) is not None
    assert way("/h/s", tree, places.roots("      1000       1000          1\n", "65534\n")) is None
    assert places.roots("7 7 1", "") == {0, 65534}
    assert places.roots("", "") == {0}


@needs_root
def test_what_a_stranger_leaves_in_a_shared_directory_names_no_project(place: Place) -> None:
    place.root.chmod(0o1777)
    work = place.root / "work"
    work.mkdir()
    for name in (project.CONFIG_NAME, ".git"):
        path = place.root / name
        path.write_text("gitdir: /elsewhere\n" if name == ".git" else 'project = "theirs"\n')
        os.chown(path, UID, UID)
    found = project.of_directory(str(work), frozenset())
    assert found is not None
    assert found.key == str(work)
    (place.root / project.CONFIG_NAME).write_text("= nonsense")
    assert project.of_directory(str(work), frozenset()) is not None
    os.chown(place.root / project.CONFIG_NAME, 0, 0)
    (place.root / project.CONFIG_NAME).write_text('project = "ours"')
    assert project.of_directory(str(work), frozenset()) is not None


def test_a_pipe_as_project_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / project.CONFIG_NAME)
    os.mkfifo(tmp_path / ".git")
    found = project.of_directory(str(tmp_path), frozenset())
    assert found is not None
    assert found.key == str(tmp_path)


def test_a_directory_in_a_files_place_costs_no_descriptor(tmp_path: Path) -> None:
    """It opens, but can't be read: the daemon looks at its configuration again and again, the shim at every call."""
    path = tmp_path / project.CONFIG_NAME
    path.mkdir()
    before = os.listdir("/dev/fd")
    for _ in range(3):
        assert project.of_directory(str(tmp_path), frozenset()) is not None
        with pytest.raises(config.BadConfig, match="Is a directory"):
            config.load(str(path))
        assert checks_place.config(str(path)).level == "fail"
    assert os.listdir("/dev/fd") == before


GROUPS = """
import json, sys
from mbx_client import paths
from mbxd import ground
said = [paths.way_problem(sys.argv[1])]
try:
    ground.inspect_state(ground.Ground(sys.argv[1], "", ""))
    said.append(None)
except ground.Unfit as problem:
    said.append(str(problem))
print(json.dumps(said))
"""


@needs_root
def test_the_group_of_the_account_may_write_also_under_another_group(place: Place) -> None:
    """Where umask is 002, directories are writable by a group that holds nobody else; newgrp changes the process's."""
    account = pwd.getpwnam("nobody")
    place.root.chmod(0o755)
    home = place.root / "home"
    home.mkdir()
    who = {**WHO, "user": account.pw_uid}

    def told(group: int) -> list[str | None]:
        os.chown(home, account.pw_uid, group)
        home.chmod(0o775)
        command = [interpreter(), "-c", GROUPS, str(home / "s")]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, **who)
        return list(json.loads(done.stdout))

    assert told(account.pw_gid) == [None, None]
    assert told(UID) == [None, None], "the process's own"
    assert all("/home can be written by others (mode 0775)" in str(said) for said in told(UID + 1))


OWNER = """
import json, os, sys
from mbxd.ownfile import NotOurs, open_own
said = []
for path in sys.argv[1:]:
    try:
        os.close(open_own(path, os.O_RDONLY))
        said.append("opened")
    except NotOurs as problem:
        said.append(str(problem))
    except OSError as error:
        said.append(error.strerror)
print(json.dumps(said))
"""


@needs_root
def test_a_file_that_root_left_is_told_with_what_to_do(place: Place) -> None:
    """Of a command that ran through sudo: open(2) says no more than that it is denied."""
    place.root.chmod(0o755)
    left, mine = place.root / "left", place.root / "mine"
    for path, mode in ((left, 0o600), (mine, 0)):
        path.touch()
        path.chmod(mode)
    os.chown(mine, UID, UID)
    assert python(OWNER, str(left), str(mine)) == [
        f"{left} belongs to uid 0, not to you ({UID}): fix its owner with chown, or move it away",
        "Permission denied",
    ]
