"""The daemon's own log: structured lines on stderr, bounded when stderr is a file of ours.

Owns the format (logfmt) and the cap. Never logs params, tokens or message contents.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from datetime import UTC, datetime

from mbxd.ownfile import open_own

CAP = 4 * 1024 * 1024
"""Bytes of the log file beyond which it is set aside as `.1`, replacing the one before."""
REPEATS_SHOWN = 3

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Logfmt(logging.Formatter):
    """`time=... level=... logger=... msg="..." key=value ...`, one line a record (a traceback follows indented)."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        parts = [f"time={at}", f"level={record.levelname.lower()}", f"logger={record.name}"]
        parts.append(f"msg={_quoted(record.getMessage())}")
        parts += [f"{k}={_quoted(str(v))}" for k, v in vars(record).items() if k not in _STANDARD]
        line = " ".join(parts)
        if record.exc_info:
            line += "\n  " + self.formatException(record.exc_info).replace("\n", "\n  ")
        return line


class FewRepeats(logging.Filter):
    """Lets the same message through a few times in a row; the rest are counted and told with the next other one."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        super().__init__()
        self._last = ("", "")
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to say it."""
        said = (record.name, record.getMessage())
        if said == self._last:
            self._count += 1
            return self._count <= REPEATS_SHOWN
        hidden = self._count - REPEATS_SHOWN
        if hidden > 0:
            record.repeats_before = hidden
        self._last, self._count = said, 1
        return True


def _quoted(text: str) -> str:
    if text and all(c.isascii() and c.isprintable() and c not in ' "=' for c in text):
        return text
    escaped = text.encode("unicode_escape").decode().replace('"', '\\"')
    return f'"{escaped}"'


def setup() -> None:
    """Log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Logfmt())
    handler.addFilter(FewRepeats())
    root = logging.getLogger("mbxd")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.INFO)


def cap(path: str) -> None:
    """Set the log file aside when it has grown too long, if it is what stderr leads to."""
    try:
        mine, there = os.fstat(2), os.stat(path)
    except OSError:
        return
    if (
        (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino)
        or not stat.S_ISREG(mine.st_mode)
        or mine.st_size < CAP
    ):
        return
    os.replace(path, path + ".1")
    fd = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)
