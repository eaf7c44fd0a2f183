"""Processes that hold identities, to be killed: forks of one small interpreter.

    spawner.py SOCKET HELLO PREFIX HELD BARE

Each of HELD children introduces itself, registers `<PREFIX>-<number>` and waits; BARE children only wait. Prints
one JSON object {"held": {name: pid}, "bare": [pid]} and ends, with its children, when its input ends. Started
through a link called `tmux.py` its children are their own host processes, for a multiplexer ends the walk; else
this process is the host of all, and each child a conversation of its own. Standard library only: started with -I -S.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

AT_ONCE = 16


def main() -> None:
    path, hello, prefix, held, bare = sys.argv[1:6]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel at once
    children: dict[str, int] = {}
    names = [f"{prefix}-{number:04d}" for number in range(int(held))]
    for start in range(0, len(names), AT_ONCE):
        reader, writer = os.pipe()
        batch = names[start : start + AT_ONCE]
        for name in batch:
            children[name] = _fork(partial(_hold, path, hello, name, writer))
        os.close(writer)
        for _ in batch:
            if os.read(reader, 1) != b".":
                sys.exit("a child could not register")
        os.close(reader)
    idle = [_fork() for _ in range(int(bare))]
    print(json.dumps({"held": children, "bare": idle}), flush=True)
    sys.stdin.read()
    for pid in (*children.values(), *idle):
        # A number may be another process's by now: only children of ours are ended.
        if _parent(pid) == os.getpid():
            os.kill(pid, signal.SIGKILL)


def _fork(act: Callable[[], None] | None = None) -> int:
    pid = os.fork()
    if pid == 0:
        os.close(0)
        if act is not None:
            act()
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(5)  # nobody is left behind when the parent is killed
        os._exit(0)
    return pid


def _hold(path: str, hello: str, name: str, done: int) -> None:
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    conn.connect(path)
    os.set_inheritable(conn.fileno(), False)
    _ask(conn, hello.replace("INSTANCE", os.urandom(8).hex()))
    meta = {"session": name, "request_id": name}
    params = {"name": name, "role": "backend"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "identity.register", "params": params, "meta": meta}
    _ask(conn, json.dumps(message))
    os.write(done, b".")
    os.close(done)
    globals()["kept"] = conn


def _ask(conn: socket.socket, line: str) -> None:
    conn.sendall(line.encode() + b"\n")
    data = b""
    while not data.endswith(b"\n"):
        data += conn.recv(65536)
    if b'"error":{' in data:
        sys.stderr.write(data.decode())
        os._exit(1)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


if __name__ == "__main__":
    main()
