"""Starting, stopping, being the only one, and what happens to the ground beneath: with real daemons."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mbxd.runtime.processes import LocalProcesses
from tests.support.daemon import FAULTY, PROGRAM, Client, DaemonProcess, Place, stopped, wait_until
from tests.support.trees import Forest

QUICK: dict[str, Any] = {"MBX_PLACES_CHECK": "0.05"}


def fails(place: Place, state: Path | None = None, **more: Any) -> tuple[int, str]:
    """Exit code and log of a daemon that must not start."""
    daemon = place.start(state=state, wait=False, **more)
    said = daemon.wait_ready(must=False)
    code = daemon.process.wait(30)
    assert said.startswith("error: "), (said, daemon.log())
    lines = daemon.log().splitlines()
    assert len(lines) == 1, lines
    assert said.removeprefix("error: ") in lines[0]
    return code, lines[0]


# --- one daemon ---------------------------------------------------------------------------------------


def test_a_second_daemon_leaves_with_75_and_says_who_runs(place: Place, daemon: DaemonProcess) -> None:
    code, line = fails(place)
    assert code == 75
    assert str(daemon.pid) in line
    assert daemon.person().call("ping")["pid"] == daemon.pid


def test_another_spelling_and_another_socket_are_the_same_daemon(place: Place, daemon: DaemonProcess) -> None:
    (place.root / "link").symlink_to(place.root)
    code, line = fails(place, MBX_STATE_DIR=str(place.root / "link/s"), MBX_SOCKET=str(place.root / "other/x.sock"))
    assert code == 75
    assert str(daemon.pid) in line
    assert not (place.root / "other").exists()


def test_of_many_starters_one_serves(place: Place) -> None:
    daemons = [place.start(wait=False) for _ in range(8)]
    said = [daemon.wait_ready(must=False) for daemon in daemons]
    assert said.count("ready") == 1
    (winner,) = (daemon for daemon in daemons if daemon.said == "ready")
    losers = [daemon for daemon in daemons if daemon is not winner]
    assert {loser.process.wait(30) for loser in losers} == {75}
    assert winner.person().call("ping")["pid"] == winner.pid
    pointer = json.loads((place.state / "daemon.json").read_text())
    assert (pointer["pid"], pointer["socket"]) == (winner.pid, winner.socket_path)


def test_a_daemon_that_is_stopped_is_the_daemon_still(place: Place, daemon: DaemonProcess) -> None:
    with stopped(daemon.pid):
        code, _ = fails(place)
    assert code == 75
    assert daemon.person().call("ping")["pid"] == daemon.pid


def test_after_kill_the_stale_socket_is_replaced(place: Place, daemon: DaemonProcess) -> None:
    daemon.kill()
    assert os.path.exists(daemon.socket_path)
    successor = place.start()
    assert successor.person().call("ping")["pid"] == successor.pid


def test_a_predecessor_that_ends_late_does_not_take_the_socket_along(place: Place) -> None:
    first = place.start()
    first.stop()
    second = place.start()
    inode = os.stat(second.socket_path).st_ino
    third = place.start(wait=False)
    third.wait_ready(must=False)
    third.process.wait(30)
    assert os.stat(second.socket_path).st_ino == inode
    assert second.person().call("ping")["pid"] == second.pid


def test_a_socket_that_another_daemon_serves_is_not_taken(place: Place, daemon: DaemonProcess) -> None:
    """Another state directory, the same socket: two would take it from each other for ever."""
    inode = os.stat(daemon.socket_path).st_ino
    code, line = fails(place, place.root / "other", MBX_SOCKET=daemon.socket_path)
    assert code == 1
    assert "another state directory" in line
    assert "MBX_SOCKET" in line
    assert os.stat(daemon.socket_path).st_ino == inode
    assert daemon.person().call("ping")["pid"] == daemon.pid
    daemon.kill()
    heir = place.start(state=place.root / "other", wait=False, MBX_SOCKET=daemon.socket_path)
    heir.wait_ready()
    with Client(socket.socket(socket.AF_UNIX)) as client:
        client.sock.connect(daemon.socket_path)
        assert client.call("ping")["pid"] == heir.pid, "nobody served it any more"


# --- stopping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(place: Place, forest: Forest, number: int) -> None:
    daemon = place.start()
    clients = [speaker.client for speaker in forest.sessions(daemon, 8)]
    for at, client in enumerate(clients):
        client.register(f"shop-{at}")
    asked = [(client, client.send("identity.release")) for client in clients]
    first = clients[0].receive()
    daemon.process.send_signal(number)
    assert daemon.process.wait(30) == 0
    answers = {clients[0]: first}
    for client, _ in asked[1:]:
        try:
            answers[client] = client.receive()
        except ConnectionError:
            continue
    rows = place.start().person().rows()
    for at, client in enumerate(clients):
        if "result" in answers.get(client, {}):
            assert rows[f"shop-{at}"]["state"] == "vacant", "an answered change is kept"


def test_clients_that_do_not_read_do_not_hold_it_up(place: Place, forest: Forest) -> None:
    daemon = place.start()
    client = forest.session(daemon).client
    for at in range(30):
        daemon.person().register(f"mailbox-{at}")
    client.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        client.sock.send(b'{"jsonrpc":"2.0","id":1,"method":"identity.list","params":{"all":true}}\n' * 2000)
    wait_until("it answers others", lambda: daemon.person().call("ping"))
    began = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - began < 15, "it waits 4 s for them; the rest is this machine's load"


# --- the ground ---------------------------------------------------------------------------------------


def test_a_state_directory_that_others_can_write(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    place.state.chmod(0o770)
    code, line = fails(place)
    assert code == 1
    assert "chmod 700" in line


def test_a_state_directory_that_others_can_read_is_closed(place: Place) -> None:
    place.state.mkdir()
    place.state.chmod(0o755)
    place.start()
    assert place.state.stat().st_mode & 0o777 == 0o700


def test_a_state_directory_that_is_a_link_or_a_file(place: Place) -> None:
    (place.root / "real").mkdir(mode=0o700)
    place.state.symlink_to(place.root / "real")
    assert "symbolic link" in fails(place)[1]
    place.state.unlink()
    place.state.write_text("a file")
    assert "not a directory" in fails(place)[1]
    assert place.state.read_text() == "a file"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")
def test_a_state_directory_of_another_user(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    os.chown(place.state, 12345, 12345)
    assert "12345" in fails(place)[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")
def test_a_home_of_another_user_is_left_alone(place: Place) -> None:
    home = place.root / "theirs"
    home.mkdir()
    os.chown(home, 12345, 12345)
    code, line = fails(place, HOME=str(home), MBX_STATE_DIR="")
    assert code == 1
    assert "12345" in line
    assert not list(home.iterdir())


def test_a_relative_place_and_no_home(place: Place) -> None:
    assert "MBX_STATE_DIR" in fails(place, MBX_STATE_DIR="relative")[1]
    assert "MBX_SOCKET" in fails(place, MBX_SOCKET="relative.sock")[1]


def test_a_socket_path_that_is_too_long(place: Place) -> None:
    code, line = fails(place, MBX_SOCKET=str(place.root / ("ä" * 60) / "x.sock"))
    assert code == 1
    assert "MBX_SOCKET" in line
    assert "107" in line


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_something_else_at_the_sockets_path(place: Place, what: str) -> None:
    run = place.state / "run"
    run.mkdir(parents=True, mode=0o700)
    place.state.chmod(0o700)
    path = run / "mbxd.sock"
    if what == "file":
        path.write_text("precious")
    elif what == "directory":
        path.mkdir()
    else:
        (place.root / "target").write_text("precious")
        path.symlink_to(place.root / "target")
    code, line = fails(place)
    assert code == 1
    assert "in the way" in line
    kept = path if what == "file" else place.root / "target"
    assert path.is_symlink() == (what == "link")
    assert path.is_dir() if what == "directory" else kept.read_text() == "precious"


def test_a_lock_file_that_is_a_link(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    (place.root / "target").write_text("precious")
    (place.state / "mbxd.lock").symlink_to(place.root / "target")
    assert fails(place)[0] == 1
    assert (place.root / "target").read_text() == "precious"


def test_the_lock_is_not_handed_to_children(place: Place, daemon: DaemonProcess) -> None:
    locks = 0
    for entry in os.listdir(f"/proc/{daemon.pid}/fdinfo"):
        with contextlib.suppress(FileNotFoundError):  # files come and go with the log's segments and the archive
            target = os.readlink(f"/proc/{daemon.pid}/fd/{entry}")
            flags = Path(f"/proc/{daemon.pid}/fdinfo/{entry}").read_text().split()
            assert int(entry) <= 2 or int(flags[flags.index("flags:") + 1], 8) & os.O_CLOEXEC, target
            locks += target.endswith(".lock")
    assert locks == 1


def sockets(daemon: DaemonProcess) -> int:
    """How many sockets a daemon has open: files come and go with its log's segments."""
    return sum(target.startswith("socket:") for target in links(daemon.pid))


@pytest.mark.parametrize("how", ["a full disk", "a directory in its place"])
def test_a_pointer_that_can_not_be_written_degrades_only(place: Place, forest: Forest, how: str) -> None:
    place.state.mkdir(mode=0o700)
    if how == "a full disk":
        daemon = place.start(FAULTY, MBX_FAULT="pointer:1:ENOSPC")
    else:
        (place.state / "daemon.json").mkdir()
        daemon = place.start()
    client = forest.session(daemon).client
    assert client.register("shop-a")["epoch"] == 1
    (told,) = client.call("status")["degraded"]
    assert "daemon.json could not be written" in told
    assert [entry.name for entry in place.state.glob("daemon.json*") if not entry.is_dir()] == []
    assert daemon.stop() == 0


def test_a_removed_socket_is_bound_anew_again_and_again(place: Place, forest: Forest) -> None:
    daemon = place.start(FAULTY, **QUICK)
    holder = forest.session(daemon)
    holder.client.register("shop-a")
    listening = sockets(daemon)
    for _ in range(3):
        os.unlink(daemon.socket_path)
        wait_until("it is bound anew", lambda: os.path.exists(daemon.socket_path))
        with wait_until("it accepts", lambda: connects(daemon)) as client:
            assert client.call("ping")["pid"] == daemon.pid
        assert holder.client.claim()["epoch"] == 1, "who was connected stays so"
    wait_until("nothing is kept", lambda: sockets(daemon) <= listening)
    shutil.rmtree(os.path.dirname(daemon.socket_path))
    wait_until("it is bound anew", lambda: os.path.exists(daemon.socket_path))
    assert connects(daemon)
    assert daemon.stop() == 0


def connects(daemon: DaemonProcess) -> Client | None:
    try:
        return daemon.connect()
    except OSError:
        return None


def test_a_directory_in_the_sockets_place_degrades_and_goes_again(place: Place, forest: Forest) -> None:
    daemon = place.start(FAULTY, **QUICK)
    client = forest.session(daemon).client
    os.unlink(daemon.socket_path)
    os.mkdir(daemon.socket_path)
    found = wait_until("it says so", lambda: client.call("status")["degraded"])
    assert "in the way" in found[0]
    assert client.register("shop-a")["epoch"] == 1
    os.rmdir(daemon.socket_path)
    wait_until("it is well again", lambda: not client.call("status")["degraded"])
    assert connects(daemon)


def test_it_leaves_when_its_state_directory_is_removed(place: Place, forest: Forest) -> None:
    daemon = place.start(FAULTY, **QUICK)
    forest.session(daemon).client.register("shop-a")
    os.unlink(daemon.socket_path)  # also after a new bind
    wait_until("it is bound anew", lambda: os.path.exists(daemon.socket_path))
    shutil.rmtree(place.state, ignore_errors=True)
    assert daemon.process.wait(10) == 0
    assert "state directory is gone" in daemon.log()
    successor = place.start()
    assert successor.person().rows() == {}


def test_it_leaves_when_its_state_directory_is_replaced(place: Place) -> None:
    daemon = place.start(FAULTY, **QUICK)
    place.state.rename(place.root / "old")
    successor = place.start()
    assert daemon.process.wait(10) == 0
    assert successor.person().call("ping")["pid"] == successor.pid, "and it does not take the successor's socket"


# --- the service manager ------------------------------------------------------------------------------


class Manager:
    """A service manager as the daemon sees it: a socket for its messages, and a listening socket to pass."""

    def __init__(self, place: Place) -> None:
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(place.root / "notify"))
        self.notify.settimeout(20)
        self.listening = socket.socket(socket.AF_UNIX)
        self.path = str(place.root / "activated.sock")
        self.listening.bind(self.path)
        self.listening.listen(16)
        self.place = place

    def start(self, **more: Any) -> DaemonProcess:
        """As systemd does: descriptor 3, and LISTEN_PID of the very process."""
        fd = self.listening.fileno()
        launcher = self.place.root / "launch.py"
        launcher.write_text(
            "import os, sys\nfd = int(sys.argv[1])\nos.dup2(fd, 3)\nos.environ['LISTEN_PID'] = str(os.getpid())\n"
            "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
        )
        return self.place.start(
            (str(launcher), str(fd), *PROGRAM),
            pass_fds=(fd,),
            wait=False,
            LISTEN_FDS="1",
            LISTEN_FDNAMES="mbxd.socket",
            NOTIFY_SOCKET=str(self.place.root / "notify"),
            **more,
        )

    def told(self) -> str:
        return self.notify.recv(4096).decode()

    def connect(self) -> Client:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.path)
        return Client(sock)

    def close(self) -> None:
        self.notify.close()
        self.listening.close()


@pytest.fixture
def manager(place: Place) -> Iterator[Manager]:
    made = Manager(place)
    yield made
    made.close()


def test_an_activated_daemon_serves_the_passed_socket(manager: Manager) -> None:
    early = manager.connect()  # the manager listens before there is a daemon
    daemon = manager.start(WATCHDOG_USEC="300000")
    assert manager.told().splitlines()[0] == "READY=1"
    assert {manager.told() for _ in range(3)} == {"WATCHDOG=1"}
    with early:
        early.hello("mbxctl")
        status = early.call("status")
        assert status["socket_activated"] is True
        assert status["socket"] == manager.path
    inode = os.stat(manager.path).st_ino
    daemon.process.terminate()
    assert daemon.process.wait(10) == 0
    said = [manager.told()]
    while said[-1] == "WATCHDOG=1":
        said.append(manager.told())
    assert said[-1] == "STOPPING=1"
    assert os.stat(manager.path).st_ino == inode, "the socket is the manager's"
    with manager.connect() as waiting:
        again = manager.start()
        assert waiting.call("ping")["pid"] == again.pid, "nobody is refused in between"


def test_an_activated_daemon_displaces_one_that_was_started_by_a_shim(manager: Manager, forest: Forest) -> None:
    first = manager.place.start()
    speaker = forest.session(first)
    epoch = speaker.client.register("shop-a")["epoch"]
    second = manager.start()
    assert manager.told().splitlines()[0] == "READY=1"
    assert first.process.wait(10) == 0
    client = speaker.shim.connect(manager.path, instance=speaker.client.instance)
    client.hello()
    assert client.claim()["epoch"] == epoch
    assert client.call("ping")["pid"] == second.pid


def test_an_activated_daemon_gives_up_on_one_that_does_not_leave(manager: Manager) -> None:
    first = manager.place.start()
    with stopped(first.pid):
        second = manager.start()
        assert second.process.wait(30) == 75
    assert first.process.wait(30) == 0, "the signal was for it"


def test_an_activated_daemon_signals_only_the_process_that_is_meant(place: Place, manager: Manager) -> None:
    """The lock is held by us, and the file names an innocent process with other ticks."""
    place.state.mkdir(mode=0o700)
    innocent = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    lock = os.open(place.state / "mbxd.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    ticks = LocalProcesses().ancestry(innocent.pid)[0].identity.ticks
    os.write(lock, f"{innocent.pid} {ticks + 1}\n".encode())
    try:
        assert manager.start().process.wait(30) == 75
        assert innocent.poll() is None
    finally:
        os.close(lock)
        innocent.communicate()


def test_a_watchdog_for_another_process_is_not_ours(manager: Manager) -> None:
    manager.start(WATCHDOG_USEC="100000", WATCHDOG_PID="1")
    assert manager.told().splitlines()[0] == "READY=1"
    manager.notify.settimeout(0.5)
    with pytest.raises(TimeoutError):
        manager.told()


# --- configuration ------------------------------------------------------------------------------------


def test_the_configuration_is_reloaded_without_a_restart(place: Place, forest: Forest) -> None:
    place.config("")
    daemon = place.start()
    client = forest.session(daemon).client
    client.register("shop-a")

    def grace() -> float:
        found: float = client.call("identity.why", {"name": "shop-a"})["grace_s"]
        return found

    assert grace() == 60
    place.config("[liveness]\ndetach_grace_s = 7\n")
    wait_until("it is reloaded", lambda: grace() == 7)
    place.config("[liveness]\ndetach_grace_s = 'soon'\n")
    error = wait_until("it says so", lambda: client.call("status")["config_error"])
    assert "detach_grace_s" in error
    assert client.call("status")["degraded"]
    assert grace() == 7, "a bad file keeps the values before"
    replacement = place.root / "new.toml"
    replacement.write_text("[liveness]\ndetach_grace_s = 9\n")
    replacement.rename(place.config("x"))
    wait_until("a replacement is seen", lambda: grace() == 9)
    assert client.call("status")["config_error"] is None
    assert not client.call("status")["degraded"]


@pytest.mark.parametrize("text", ["[", "unknown = 1", "[liveness]\nidle_after_s = 0", "\x00", "a = " + "[" * 10_000])
def test_a_bad_configuration_does_not_stop_the_start(place: Place, text: str) -> None:
    place.config(text)
    status = place.start().person().call("status")
    assert status["config_error"]
    assert status["config_path"] in status["config_error"]


def test_a_configuration_that_can_not_be_read(place: Place) -> None:
    place.config("").unlink()
    (place.root / "home/.config/mbx/config.toml").mkdir()
    assert place.start().person().call("status")["config_error"]


def test_a_watched_configuration_does_not_hold_up_the_end(place: Place) -> None:
    place.config("[liveness]\ndetach_grace_s = 7\n")
    daemon = place.start()
    wait_until("it is watched", lambda: "inotify" in " ".join(links(daemon.pid)))
    began = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - began < 15, "not as long as the watch waits for an edit, which is a minute"


def links(pid: int) -> list[str]:
    """Where the descriptors of a process lead: some come and go meanwhile."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found
