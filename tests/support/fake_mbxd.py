"""A program that stands in for `python -m mbxd` when starting is tested; see `install`.

It notes how it was started, says that it is ready, and serves connections until somebody sends it a line or
it has lived for a minute. A file `behaviour` in its state directory makes it fail instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

LIFETIME_S = 60.0


def install(root: Path) -> Path:
    """Make a package `mbxd` below `root` that runs this program; the directory for PYTHONPATH."""
    package = root / "fake" / "mbxd"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    repository = str(Path(__file__).parents[2])
    (package / "__main__.py").write_text(
        f"import sys\nsys.path.append({repository!r})\nfrom tests.support import fake_mbxd\nfake_mbxd.main()\n"
    )
    return root / "fake"


def stop(state: Path) -> None:
    """End the running one and wait for its end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(str(state / "run" / "mbxd.sock"))
        connection.sendall(b"stop\n")
        assert connection.recv(1) == b""


def _descriptors() -> dict[str, str]:
    """Number -> what it leads to, of everything that is open now (the listing's own is gone by then)."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def main() -> None:
    state = Path(os.environ["MBX_STATE_DIR"])
    ready = int(os.environ["MBXD_READY_FD"])
    behaviour = (state / "behaviour").read_text() if (state / "behaviour").exists() else ""
    with (state / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if behaviour == "fail":
        os.write(ready, b"error: the log is damaged\n")
        sys.exit(1)
    if behaviour == "beaten once":
        (state / "behaviour").unlink()
        os.write(ready, b"error: another mbxd runs already: it is about to end\n")
        sys.exit(75)
    if behaviour == "crash":
        sys.exit(3)
    note = {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "sid": os.getsid(0),
        "pgid": os.getpgid(0),
        "cwd": str(Path.cwd()),
        "env": dict(os.environ),
        "fds": _descriptors(),
    }
    (state / "note").write_text(json.dumps(note))
    (state / "run").mkdir(exist_ok=True)
    path = state / "run" / "mbxd.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(64)
        listener.settimeout(LIFETIME_S)
        os.write(ready, b"ready\n")
        os.close(ready)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(1)
                if connection.recv(16) == b"stop\n":
                    path.unlink()
                    os._exit(0)
