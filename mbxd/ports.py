"""The daemon's ports: what it needs of the machine, as Protocols.

Each has a real adapter and a fake, and one conformance suite in tests/ that both pass. Nothing here
does I/O; this module imports the standard library and msgspec alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

T = TypeVar("T")


class VfsFile(Protocol):
    """An open file of the store. Offsets and sizes are bytes; every call may raise OSError."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""
        ...

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write and return how many bytes went in: a short write is no error here, the caller must look."""
        ...

    def sync_data(self) -> None:
        """As fdatasync(2) (F_FULLFSYNC on macOS): the data, and the size when it grew, are on the disk."""
        ...

    def size(self) -> int:
        """Current size in bytes."""
        ...

    def close(self) -> None:
        """Close; closing twice is no error."""
        ...


class Vfs(Protocol):
    """The file system as the store uses it. Paths are absolute."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> VfsFile:
        """Open for reading and writing. `create` makes a new file of mode 0600 and fails when it exists."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, in no order."""
        ...

    def make_dir(self, path: str) -> None:
        """Make a directory of mode 0700 unless it exists; parents must exist."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Replace `new` atomically; durable only after `sync_dir`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; durable only after `sync_dir`."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in this directory durable."""
        ...


class Clock(Protocol):
    """Three readings. Only `wall` is ever stored."""

    def wall(self) -> float:
        """Unix time in seconds; may jump either way."""
        ...

    def awake(self) -> float:
        """Seconds of a clock that stands still while the machine sleeps; never stored or compared across runs."""
        ...


class ProcessId(msgspec.Struct, frozen=True, array_like=True, gc=False, cache_hash=True):
    """Identity of a process, good across daemon restarts: equal means the same process.

    A struct and no tuple: it is a key of most indexes, and a replay makes millions of them.

    boot: boot id (empty where the system has none); ns: inode of the pid namespace whose numbers `pid` belongs
    to (the daemon's own when it looked), 0 when unreadable;
    pid: as the daemon sees it, 0 when invisible; ticks: raw start time (Linux: field 22 of /proc/pid/stat,
    clock ticks since boot; macOS: microseconds), 0 when unreadable; inode: of its pidfd on pidfs
    (Linux 6.9+), 0 elsewhere; negative: a random number, for a process without pid and inode, that is good
    while its handle is held. See proc(5), pidfd_open(2), docs/liveness.md.
    """

    boot: str
    ns: int
    pid: int
    ticks: int
    inode: int

    def _replace(self, **changes: Any) -> ProcessId:
        """A copy with other values, as of a NamedTuple."""
        return replace(self, **changes)


class Verdict(NamedTuple):
    """Answer of a liveness probe. status: alive, dead, unknown; reason: a code of docs/liveness.md."""

    status: Literal["alive", "dead", "unknown"]
    reason: str


class ProcessInfo(NamedTuple):
    """A process as found on a walk. `argv` and `exe` are empty, `uid` (the effective one) is -1 when unreadable."""

    identity: ProcessId
    ppid: int
    uid: int
    argv: tuple[str, ...]
    exe: str


class Processes(Protocol):
    """Processes of this machine. A handle is an int that stands for a process: a pidfd, or a number of ours."""

    def boot_id(self) -> str:
        """This boot's id."""
        ...

    def has_pidfd(self) -> bool:
        """Whether handles are pidfds, which tell of a death at once and can't be fooled by a reused pid."""
        ...

    def ancestry(self, pid: int) -> list[ProcessInfo]:
        """The process and its ancestors up to pid 1, each link checked twice; empty when it is gone or unseen."""
        ...

    def open(self, identity: ProcessId) -> int | None:
        """A handle on exactly this process; None when it is gone, is another one now, or can't be watched."""
        ...

    def adopt(self, pidfd: int) -> tuple[ProcessId, int]:
        """Take a pidfd from elsewhere (SO_PEERPIDFD): identity and handle. The port owns the descriptor from now on."""
        ...

    def probe(self, identity: ProcessId, handle: int | None) -> Verdict:
        """Alive, dead or unknown, by the decision table of docs/liveness.md. Never raises."""
        ...

    def close(self, handle: int) -> None:
        """Give a handle back; one that is not held is left alone."""
        ...

    def shutdown(self) -> None:
        """Give everything back. Nothing may be called afterwards."""
        ...

    async def wait_deaths(self) -> list[int]:
        """Wait until watched processes die; their handles, each once. One task may wait.

        Without pidfds this waits for ever.
        """
        ...

    def describe(self, pid: int) -> str | None:
        """A line for people: the program's name and age, no arguments (they hold secrets); None when unreadable."""
        ...

    def statistics(self) -> dict[str, int]:
        """Counters: watched, pidfd (0 or 1), opened, deaths, open_failed, watch_failed, probes, unknown."""
        ...


class RunSync(Protocol):
    """Runs a blocking function elsewhere (a worker thread), or inline in tests."""

    def __call__(self, fn: Callable[..., T], *args: Any) -> Awaitable[T]:
        """The function's result."""
        ...


class RepoFailed(Exception):
    """The repository can't be used now; the text is one line for people. Trying again later may help."""


class RepoMoved(RepoFailed):
    """The branch is not where the writer thought: somebody else moved it. Nothing was changed."""


class Tip(NamedTuple):
    """Newest commit of the branch. seq: of its trailer when the daemon made it, else None."""

    hexsha: str
    seq: int | None


class NewCommit(NamedTuple):
    """A commit to be made. message: with its trailers; at: Unix seconds; files: (path, contents); gone: paths."""

    message: str
    at: float
    files: Iterable[tuple[str, bytes]]
    gone: Iterable[str] = ()


class PastCommit(NamedTuple):
    """A commit of the branch. seq as in `Tip`; compared: it put right what did not come from the log."""

    hexsha: str
    seq: int | None
    compared: bool
    summary: str
    at: float


class Repo(Protocol):
    """The Git repository of the archive: one branch. Calls block, may come from any thread, and raise RepoFailed."""

    def prepare(self) -> None:
        """Make the repository unless it is there."""
        ...

    def tip(self) -> Tip | None:
        """The newest commit; None when there is none."""
        ...

    def blob_id(self, contents: bytes) -> str:
        """The name that Git gives these contents."""
        ...

    def files(self, hexsha: str) -> dict[str, str]:
        """Path -> blob id of every file of a commit."""
        ...

    def write(self, parent: str | None, commits: Iterable[NewCommit]) -> str | None:
        """Put commits on top of `parent`, all or none; the new tip.

        One that would change nothing is left out; None when all are. Raises RepoMoved when the tip is not `parent`.
        """
        ...

    def checkout(self) -> None:
        """Bring the checked-out files to the tip."""
        ...

    def log(self, paths: Sequence[str], limit: int | None) -> list[PastCommit]:
        """Commits, newest first: those that changed one of these files; with no path all."""
        ...

    def check(self) -> list[str]:
        """What is wrong with the repository's objects, in words."""
        ...

    def tidy(self) -> None:
        """Put small packs together when there are many."""
        ...

    def start_over(self) -> None:
        """Set the repository aside (as `<name>.old`, in place of an older one) and make an empty one."""
        ...

    def abort(self) -> None:
        """End what runs now in other threads, as failed; later calls fail at once."""
        ...
