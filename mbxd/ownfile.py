"""Opening what is in directories of ours, without being led elsewhere or held up.

Owns the flags and the check of what was opened: a plain file of this user with one name, a private directory. A
symbolic link, a named pipe, a device or somebody's hard link in its place is refused before a byte is read or written.
"""

from __future__ import annotations

import errno
import os

from mbx_wire import places

_SOMETHING_ELSE = frozenset(
    {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EACCES, errno.EPERM}
)
"""Why open(2) fails on a link, a socket, a directory, a device, or a file of somebody else's."""


class NotOurs(OSError):
    """Something is in the file's place; the text says what, and what to do."""

    def __init__(self, path: str, problem: str) -> None:
        """`problem`: a sentence that names the path."""
        link = os.path.islink(path)
        super().__init__(errno.ELOOP if link else errno.EPERM, problem)
        self.path = path

    def __str__(self) -> str:
        """The sentence alone."""
        return str(self.strerror)


def open_own(path: str, flags: int, mode: int = 0o600) -> int:
    """A descriptor, close-on-exec. Raises NotOurs, or the OSError of open(2). Never waits for a pipe's other end."""
    try:
        # O_NONBLOCK means nothing to a plain file; a pipe would keep us waiting, a device might act on being opened.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in _SOMETHING_ELSE:
            check_own(path)
        raise
    try:
        _check(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_own(path: str) -> None:
    """Raise NotOurs unless the path is a plain file of ours, or nothing; for files that another library opens."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    _check(path, found)


def check_own_directory(path: str) -> None:
    """Raise NotOurs unless the path is a directory of ours that nobody else may write."""
    problem = places.directory_problem(path, os.lstat(path), os.geteuid())
    if problem is not None:
        raise NotOurs(path, problem)


def _check(path: str, found: os.stat_result) -> None:
    problem = places.file_problem(path, found, os.geteuid())
    if problem is not None:
        raise NotOurs(path, problem)
