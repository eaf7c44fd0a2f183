"""Another user of the machine gets nothing: no connection, no byte of the state, no name, no place."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security import parties, strangers
from tests.security.strangers import TRY, UID, WHO, interpreter, needs_root, python
from tests.support.daemon import PATIENCE, DaemonProcess, Place, image, wait_until
from tests.support.trees import Forest

pytestmark = needs_root

PING = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


@pytest.fixture
def shared(place: Place, forest: Forest) -> DaemonProcess:
    """A daemon whose state lies in a directory that everybody may write, as /tmp."""
    place.root.chmod(0o1777)
    daemon = place.start()
    forest.session(daemon).client.register("shop-a")
    return daemon


def test_nothing_can_be_read_or_changed(place: Place, shared: DaemonProcess) -> None:
    before = image(place.state)
    code = f"""{TRY}
state, socket_path, root = sys.argv[1:]
def connect():
    socket.socket(socket.AF_UNIX).connect(socket_path)
def put(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
names = ["mbxd.lock", "daemon.json", "key", "mail.db", "registry", "archive", "run", "run/mbxd.sock"]
print(json.dumps({{
    "connect": attempt(connect),
    "list": attempt(lambda: os.listdir(state)),
    "open": [attempt(lambda: os.open(f"{{state}}/{{name}}", os.O_RDONLY)) for name in names],
    "make": [attempt(lambda: put(f"{{state}}/{{name}}")) for name in ("x", "run/x", "daemon.json.1")],
    "remove": [attempt(lambda: os.unlink(f"{{state}}/{{name}}")) for name in names],
    "exchange": [attempt(lambda: os.rename(state, f"{{root}}/mine")), attempt(lambda: os.rmdir(state))],
    "link": attempt(lambda: os.link(f"{{state}}/key", f"{{root}}/key")),
    "chmod": attempt(lambda: os.chmod(state, 0o777)),
}}))
"""
    tried = python(code, str(place.state), shared.socket_path, str(place.root))
    for what, numbers in tried.items():
        for number in numbers if isinstance(numbers, list) else [numbers]:
            assert number in {1, 13}, (what, numbers)  # EPERM, EACCES
    after = image(place.state)
    ours = ("archive/", "registry/next")  # they follow in their own time
    assert {k: v for k, v in after.items() if not k.startswith(ours)} == {
        k: v for k, v in before.items() if not k.startswith(ours)
    }
    assert shared.person().rows()["shop-a"]["state"] == "live"


def test_the_kernel_is_asked_when_permissions_were_loosened(place: Place, shared: DaemonProcess) -> None:
    """Somebody ran chmod -R 777: who connects is still looked at."""
    for path in (place.state, place.state / "run", Path(shared.socket_path)):
        path.chmod(0o777)
    code = """
import json, socket, sys
heard = []
for number in range(20):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(sys.argv[1])
    try:
        sock.sendall(sys.argv[2].encode())
        sock.sendall(b'{"jsonrpc":"2.0","id":2,"method":"stop"}\\n')
    except OSError:
        pass
    data = b""
    try:
        while piece := sock.recv(4096):
            data += piece
    except ConnectionResetError:
        pass
    heard.append(data.decode())
print(json.dumps(heard))
"""
    for line in set(python(code, shared.socket_path, PING)):
        answer = json.loads(line)
        assert answer["error"] == {"code": -32000, "message": "This daemon serves another user."}
        assert answer["id"] is None
    person = shared.person()
    assert person.call("status")["connections"] == 1 + 1, "the session and the person"
    log = shared.log()
    assert f"uid={UID}" in log
    assert log.count("another user connected") <= 4, "repeats are counted, not written"


@contextlib.contextmanager
def listening(path: Path) -> Iterator[None]:
    """A stranger's server there: it takes connections and says nothing on them."""
    code = (
        "import os, select, socket, sys\nos.umask(0)\ns = socket.socket(socket.AF_UNIX)\n"
        "s.bind(sys.argv[1])\ns.listen(64)\n"
        "print('up', flush=True)\n"
        "while select.select([s, sys.stdin], [], [])[0][0] is s:\n    s.accept()\n"
    )
    command = [interpreter(), "-c", code, str(path)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=strangers.environment(), **WHO
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield
    finally:
        process.communicate(timeout=PATIENCE)


@pytest.fixture
def theirs(place: Place) -> Path:
    """A directory of the stranger's in one that everybody may write."""
    place.root.chmod(0o1777)
    path = place.root / "theirs"
    path.mkdir(mode=0o755)
    os.chown(path, UID, UID)
    return path


def test_a_strangers_server_is_no_daemon(place: Place, theirs: Path) -> None:
    with listening(theirs / "s"):
        place.state.mkdir(mode=0o700)
        named = {"MBX_SOCKET": str(theirs / "s")}
        words = f"the server belongs to uid {UID}"
        done = parties.mbxctl(place, "list", "--json", **named)
        assert done.returncode == 69
        assert words in json.loads(done.stdout)["error"]["message"]
        assert words in parties.shim(place, **named)
        parties.hook(place, **named)
        # A pointer that leads there: another daemon is looked for, and none found.
        (place.state / "daemon.json").write_text(json.dumps({"socket": str(theirs / "s"), "pid": 1}))
        done = parties.mbxctl(place, "list", "--json")
        assert done.returncode == 69
        assert words in json.loads(done.stdout)["error"]["message"]


def test_the_sockets_place_can_not_be_won(place: Place, theirs: Path) -> None:
    """The stranger listens there first, or keeps the directory: no daemon goes there, and none of theirs is removed."""
    with listening(theirs / "mbxd.sock"):
        said = parties.daemon(place, MBX_SOCKET=str(theirs / "mbxd.sock"))
        assert f"belongs to uid {UID}" in said
        assert (theirs / "mbxd.sock").exists()
    place.root.joinpath("run").mkdir(mode=0o1777)
    place.root.joinpath("run").chmod(0o1777)
    with listening(place.root / "run/mbxd.sock"):
        said = parties.daemon(place, MBX_SOCKET=str(place.root / "run/mbxd.sock"))
        assert "can be written by others (mode 1777)" in said
        assert (place.root / "run/mbxd.sock").exists()


def test_what_was_planted_while_it_was_open_is_not_believed(place: Place, theirs: Path) -> None:
    """A state directory that all could write, closed again without the look inside that was asked for."""
    place.state.mkdir()
    place.state.chmod(0o777)
    python(
        "import os, sys\nos.umask(0)\nstate = sys.argv[1]\n"
        "open(f'{state}/daemon.json', 'w').write('{\"socket\": \"%s\", \"pid\": 1}' % sys.argv[2])\n"
        "open(f'{state}/stopped', 'w').write(open('/proc/sys/kernel/random/boot_id').read())\n"
        "open(f'{state}/key', 'wb').write(b'k' * 32)\nprint(1)",
        str(place.state),
        str(theirs / "s"),
    )
    for party in parties.REFUSING.values():
        assert "(mode 0777)" in party(place)
    place.state.chmod(0o700)
    with listening(theirs / "s"):
        done = parties.mbxctl(place, "list", "--json")
        assert json.loads(done.stdout)["error"]["message"] == "no daemon is running"
    assert f"{place.state}/key belongs to uid {UID}" in parties.daemon(place)
    (place.state / "key").unlink()
    daemon = place.start()
    assert json.loads((place.state / "daemon.json").read_text())["socket"] == daemon.socket_path
    assert (place.state / "daemon.json").stat().st_uid == os.geteuid()


def test_a_strangers_own_daemon_is_his(place: Place) -> None:
    """Two users, one machine, one temporary directory: each has a daemon, and neither sees the other's."""
    place.root.chmod(0o1777)
    daemon = place.start()
    home = place.root / "their-home"
    home.mkdir(mode=0o700)
    os.chown(home, UID, UID)
    env = strangers.environment(home, MBX_STATE_DIR=str(home / "s"))

    def run(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return strangers.run("-m", "mbxctl", *args, "--json", env={**env, **more})

    with (place.root / "their.log").open("wb") as log:
        process = subprocess.Popen([interpreter(), "-m", "mbxd"], env=env, stdout=log, stderr=log, **WHO)
    try:
        status = wait_until("it answers", lambda: process.poll() is not None or answer_of(run("status")))
        assert status["pid"] == process.pid
        assert status["state_dir"] == str(home / "s")
        refused = run("status", MBX_STATE_DIR=str(place.state))
        assert refused.returncode not in {0, 69}
        assert "belongs to uid 0, not to you" in json.loads(refused.stdout)["error"]["message"]
        assert daemon.person().call("status")["pid"] == daemon.pid
        assert run("stop").returncode == 0
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)


def answer_of(done: subprocess.CompletedProcess[str]) -> object:
    """The document of a command that worked."""
    return json.loads(done.stdout) if done.returncode == 0 else None
