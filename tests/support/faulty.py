"""The daemon's program with faults, for tests: it kills itself, or its disk fails, at a named point.

    MBX_FAULT="<point>:<nth>[:<errno name>]"

Points: before_append, half_written, after_write, after_fsync, before_reply count the calls since the daemon was
ready, and end the process with SIGKILL at the nth. pwrite, sync_data, rename, sync_dir, spare, pointer fail from
the nth on (`spare` fails as long as the file $MBX_FAULT_UNTIL exists; `pointer` is daemon.json, of which a part is
written), short_write writes only a part. Small segments (MBX_SEGMENT) make the log roll often; MBX_PLACES_CHECK is
the pause between looks at the socket's path, in seconds. Everything else is the real daemon.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, TextIO

from mbxd import __main__ as program
from mbxd.server import listener, transport
from mbxd.store import log, vfs


class Plan:
    """What shall go wrong, and how often the point was passed."""

    def __init__(self, text: str) -> None:
        point, nth, *code = text.split(":")
        self.point = point
        self.nth = int(nth)
        self.code: int = getattr(errno, code[0]) if code else errno.EIO
        self.armed = False
        self._passed = 0

    def reached(self, point: str) -> bool:
        """Count a call at this point; whether it is the nth or a later one."""
        if point != self.point or not self.armed:
            return False
        self._passed += 1
        return self._passed >= self.nth

    def kill_at(self, point: str) -> None:
        if self.reached(point):
            os.kill(os.getpid(), signal.SIGKILL)

    def fail_at(self, point: str) -> None:
        if self.reached(point):
            raise OSError(self.code, os.strerror(self.code))


PLAN = Plan(os.environ.get("MBX_FAULT", "none:0"))


class FaultyFile(vfs.OsFile):
    """A file of the log."""

    __slots__ = ("spare",)

    def __init__(self, fd: int, *, spare: bool) -> None:
        super().__init__(fd)
        self.spare = spare

    def pwrite(self, data: bytes, offset: int) -> int:
        if self.spare:
            until = os.environ.get("MBX_FAULT_UNTIL", "")
            if PLAN.point == "spare" and (not until or os.path.exists(until)):
                PLAN.fail_at("spare")
            return super().pwrite(data, offset)
        PLAN.kill_at("before_append")
        PLAN.fail_at("pwrite")
        if PLAN.reached("half_written"):
            super().pwrite(data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        if PLAN.reached("short_write"):
            return super().pwrite(data[: len(data) // 2], offset)
        done = super().pwrite(data, offset)
        PLAN.kill_at("after_write")
        return done

    def sync_data(self) -> None:
        if self.spare:
            super().sync_data()
            return
        PLAN.fail_at("sync_data")
        super().sync_data()
        PLAN.kill_at("after_fsync")


class FaultyVfs(vfs.OsVfs):
    """The file system of the log. A file being filled is a spare until it gets its name."""

    def __init__(self) -> None:
        self._making: dict[str, FaultyFile] = {}

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> vfs.OsFile:
        plain = super().open(path, create=create, read_only=read_only)
        fd = os.dup(plain._fd)
        plain.close()
        file = FaultyFile(fd, spare=path.endswith(".tmp"))
        if file.spare:
            self._making[path] = file
        return file

    def rename(self, old: str, new: str) -> None:
        if new.endswith(".wal"):
            PLAN.fail_at("rename")
        super().rename(old, new)
        if old in self._making:
            self._making.pop(old).spare = False

    def sync_dir(self, path: str) -> None:
        PLAN.fail_at("sync_dir")
        super().sync_dir(path)


class FaultyTransport(transport.SocketTransport):
    """A connection."""

    def send(self, data: bytes) -> None:
        PLAN.kill_at("before_reply")
        super().send(data)


def dump(value: Any, file: TextIO) -> None:
    """json.dump, for the pointer."""
    text = json.dumps(value)
    file.write(text[:10])
    file.flush()
    PLAN.fail_at("pointer")
    file.write(text[10:])


class FaultyListener(listener.Listener):
    """Made when everything is recovered: from here on faults count."""

    def __init__(self, *more: object) -> None:
        super().__init__(*more)  # type: ignore[arg-type]
        PLAN.armed = True


def main() -> int:
    from mbxd import app

    for module, name, faulty in (
        (vfs, "OsVfs", FaultyVfs),
        (listener, "SocketTransport", FaultyTransport),
        (app, "Listener", FaultyListener),
        (app, "json", SimpleNamespace(dump=dump)),
    ):
        setattr(module, name, faulty)
    app.PLACES_CHECK_S = float(os.environ.get("MBX_PLACES_CHECK", app.PLACES_CHECK_S))
    segment = int(os.environ.get("MBX_SEGMENT", "0"))
    if segment:
        log.Log.open = partial(log.Log.open, segment_size=segment)  # type: ignore[method-assign]
    return program.run()


if __name__ == "__main__":
    sys.exit(main())
