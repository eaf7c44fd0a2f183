"""The archive's repository, through the `git` program. Adapter of the port `Repo`.

Owns how Git is called (a clean environment, bounded time, nothing inherited) and what its complaints mean. Never
decides what is archived, and never changes a commit that is there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from mbxd.ownfile import NotOurs, check_own_directory
from mbxd.ports import NewCommit, PastCommit, RepoFailed, RepoMoved, Tip
from mbxd.runtime.gitpack import COMMITTER_EMAIL, Objects, blob_id, write_commit

BRANCH = "refs/heads/main"
SEQ_TRAILER = "Mbx-Seq"
COMPARED_TRAILER = "Mbx-Compared"
READ_S = 30.0
WRITE_S = 120.0
TIDY_S = 600.0
LOG_S = 2.0
"""How long the history of some files may take: whoever asks is waiting."""
PACKS_MAX = 32
STALE_LOCK_S = 600.0
"""Age of a lock file that no running git holds: Git holds one for milliseconds. See lockfile.h of Git."""

# Nobody's hooks, signatures or line ends; every object and ref on the disk before it is used: git-config(1).
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.fsmonitor": "false",
    "core.fsync": "committed",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "commit.gpgSign": "false",
    "log.showSignature": "false",
    "advice.detachedHead": "false",
}
_NONE = "0" * 40
_FIELDS = "%x1f".join(
    (
        "%H",
        "%ce",
        f"%(trailers:key={SEQ_TRAILER},valueonly,separator=%x20)",
        f"%(trailers:key={COMPARED_TRAILER},separator=%x20)",
        "%at",
        "%s",
    )
)
_LOCKED = re.compile(r"unable to create '([^']+\.lock)': file exists", re.IGNORECASE)
_NEWER = re.compile(r"git repo version|repository (format )?version|repository extension", re.IGNORECASE)
_FULL = re.compile(r"no space left|disk quota|file too large|SIGXFSZ", re.IGNORECASE)


class GitRepo:
    """A repository with a working tree below `directory` (absolute; its parent exists)."""

    def __init__(self, directory: str, search_path: str) -> None:
        """`search_path`: where git is looked for, as PATH."""
        self._directory = directory
        self._git_dir = f"{directory}/.git"
        self._search_path = search_path
        self._program: str | None = None
        self._mutex = threading.Lock()  # guards _running and _aborted
        self._running: set[subprocess.Popen[bytes]] = set()
        self._aborted = False

    # -- the port --------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the repository unless it is there."""
        program = self._find()
        with _as_repo_failed():
            for place in (self._directory, self._git_dir):
                if os.path.lexists(place):
                    check_own_directory(place)  # git would follow a link, and write there
        if os.path.isfile(f"{self._git_dir}/HEAD") and os.path.isdir(f"{self._git_dir}/objects"):
            self._drop_stale_locks()
            return
        with _as_repo_failed():
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
        self._call(
            [program, "init", "-q", "-b", "main", "--template=", "--object-format=sha1", self._directory], READ_S
        )

    def tip(self) -> Tip | None:
        """The newest commit; None when there is none."""
        try:
            out = self._git("log", "-1", f"--format={_FIELDS}", BRANCH, "--").decode("utf-8", "replace")
        except RepoFailed:
            if self._has_branch():
                raise
            return None
        return Tip(*_past(out.rstrip("\n"))[:2])

    def _has_branch(self) -> bool:
        if os.path.lexists(f"{self._git_dir}/{BRANCH}"):
            return True
        # for-each-ref says nothing, and no error, when there is none: packed refs are looked at too.
        return bool(self._git("for-each-ref", BRANCH)) or not os.path.isfile(f"{self._git_dir}/HEAD")

    def blob_id(self, contents: bytes) -> str:
        """The name that Git gives these contents."""
        return blob_id(contents).hex()

    def files(self, hexsha: str) -> dict[str, str]:
        """Path -> blob id of every file of a commit."""
        found = {}
        for line in self._git("ls-tree", "-r", "-z", "--full-tree", hexsha).split(b"\0"):
            facts, _, path = line.partition(b"\t")
            if path:
                found[path.decode("utf-8", "surrogateescape")] = facts.split(b" ")[2].decode()
        return found

    def write(self, parent: str | None, commits: Iterable[NewCommit]) -> str | None:
        """Put commits on top of `parent`, all or none; the new tip. None when nothing would change."""
        # The objects go in as one pack that Git itself checks and syncs; nothing refers to them until the branch
        # moves, in one step and only from where we think it is: a crash leaves the old tip or the new one.
        with _as_repo_failed(), tempfile.TemporaryFile(dir=self._git_dir) as file, self._reader() as read:
            objects = Objects(file, read)
            tip = parent
            for commit in commits:
                tip = write_commit(objects, tip, commit) or tip
            if tip is None or tip == parent:
                return None
            before = self._half_packs()
            try:
                self._git("index-pack", "--stdin", "--strict", feed=objects.finish(), timeout=WRITE_S)
            except RepoFailed:
                for name in self._half_packs() - before:
                    with contextlib.suppress(OSError):
                        os.unlink(f"{self._git_dir}/objects/pack/{name}")
                raise
        self._git("update-ref", "-m", "archive", BRANCH, tip, parent or _NONE)
        return tip

    def checkout(self) -> None:
        """Bring the checked-out files to the tip, unless somebody has another branch there."""
        head = self._git("symbolic-ref", "-q", "HEAD", ok=(0, 1)).decode().strip()
        if head != BRANCH:
            raise RepoFailed(f"the files in {self._directory} are not brought up to date: HEAD is not on main")
        # Not reset --hard: it sets the branch as well, back to where it was when it began.
        self._git("read-tree", "-u", "--reset", "HEAD", timeout=WRITE_S)

    def log(self, paths: Sequence[str], limit: int | None) -> list[PastCommit]:
        """Commits, newest first: those that changed one of these files; with no path all."""
        # Not --follow: it takes a new file that is like another one for its copy, and compares all of a commit for it.
        arguments = ["log", "-z", f"--format={_FIELDS}"]
        if limit is not None:
            arguments.append(f"-n{limit}")
        arguments += [BRANCH, "--", *paths]
        if not self._has_branch():
            return []
        out = self._git(*arguments, timeout=LOG_S if paths else READ_S)
        return [_past(line) for line in out.decode("utf-8", "replace").split("\0") if line]

    def check(self) -> list[str]:
        """What `git fsck --strict` says of the history. Not of the index, which it would look at without a head:
        the checkout that follows a rebuild names a tree there that is in no history, the empty one.
        """
        try:
            head = [BRANCH] if self._has_branch() else []
            out = self._git("fsck", "--strict", "--no-dangling", "--no-progress", *head, timeout=TIDY_S)
        except RepoFailed as problem:
            return [str(problem)]
        return out.decode("utf-8", "replace").splitlines()[:20]

    def tidy(self) -> None:
        """Put small packs together when there are many: git-repack(1), --geometric."""
        with _as_repo_failed():
            names = os.listdir(f"{self._git_dir}/objects/pack")
        if sum(name.endswith(".idx") for name in names) > PACKS_MAX:
            self._git("repack", "-q", "-d", "--geometric=2", timeout=TIDY_S)

    def start_over(self) -> None:
        """Set the repository aside and make an empty one."""
        self._find()  # without git nothing is set aside
        with _as_repo_failed():
            if os.path.lexists(self._directory):
                old = f"{self._directory}.old"
                shutil.rmtree(old, ignore_errors=True)
                os.rename(self._directory, old)
        self.prepare()

    def abort(self) -> None:
        """End what runs now, as failed; later calls fail at once."""
        with self._mutex:
            self._aborted = True
            running = list(self._running)
        for process in running:
            process.terminate()  # Git removes its lock files on SIGTERM

    # -- calling git -----------------------------------------------------------------------------------------

    def _find(self) -> str:
        if self._program is None or not os.access(self._program, os.X_OK):
            self._program = shutil.which("git", path=self._search_path)
        if self._program is None:
            raise RepoFailed("git was not found on PATH: install it")
        return os.path.abspath(self._program)

    def _command(self, *arguments: str) -> list[str]:
        options = [part for key, value in _CONFIG.items() for part in ("-c", f"{key}={value}")]
        places = [f"--git-dir={self._git_dir}", f"--work-tree={self._directory}"]
        return [self._find(), *options, *places, *arguments]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": self._search_path,
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_LITERAL_PATHSPECS": "1",
        }

    def _git(
        self, *arguments: str, feed: Iterable[bytes] = (), timeout: float = READ_S, ok: tuple[int, ...] = (0,)
    ) -> bytes:
        return self._call(self._command(*arguments), timeout, feed=feed, ok=ok)

    def _call(
        self, command: list[str], timeout: float, *, feed: Iterable[bytes] = (), ok: tuple[int, ...] = (0,)
    ) -> bytes:
        """Run it; what it wrote. Raises RepoFailed with its last words."""
        with self._started(command) as process:
            timer = threading.Timer(timeout, _end, [process])
            timer.daemon = True
            timer.start()
            try:
                if process.stdin is None or process.stdout is None or process.stderr is None:
                    raise RepoFailed("no pipes to git")
                with contextlib.suppress(BrokenPipeError):
                    for piece in feed:
                        process.stdin.write(piece)
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                out = process.stdout.read()
                said = process.stderr.read().decode("utf-8", "replace")
                code = process.wait()
            finally:
                timed_out = timer.finished.is_set()
                timer.cancel()
        if code not in ok:
            raise _meaning(_verb(command), code, said, timed_out=timed_out)
        return out

    @contextlib.contextmanager
    def _started(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        with self._mutex:
            if self._aborted:
                raise RepoFailed("the daemon is stopping")
            try:
                process = subprocess.Popen(
                    command,
                    env=self._environment(),
                    cwd="/",
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            except OSError as error:
                raise RepoFailed(f"git can't be run: {error.strerror}") from None
            self._running.add(process)
        try:
            yield process
        finally:
            with self._mutex:
                self._running.discard(process)
            if process.poll() is None:
                _end(process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            process.wait()

    @contextlib.contextmanager
    def _reader(self) -> Iterator[_Reader]:
        """One `git cat-file --batch` for the time of a block."""
        with self._started(self._command("cat-file", "--batch")) as process:
            timer = threading.Timer(WRITE_S, _end, [process])
            timer.daemon = True
            timer.start()
            try:
                yield _Reader(process)
            finally:
                timer.cancel()

    # -- leftovers -------------------------------------------------------------------------------------------

    def _half_packs(self) -> set[str]:
        try:
            return {name for name in os.listdir(f"{self._git_dir}/objects/pack") if name.startswith("tmp_")}
        except OSError:
            return set()

    def _drop_stale_locks(self) -> None:
        """A git that the machine's end killed left its locks; who works in the repository holds none this long."""
        for name in ("index.lock", f"{BRANCH}.lock", "HEAD.lock"):
            path = f"{self._git_dir}/{name}"
            with contextlib.suppress(OSError):
                if time.time() - os.lstat(path).st_mtime > STALE_LOCK_S:
                    os.unlink(path)


class _Reader:
    """Objects by name. See git-cat-file(1), batch output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __call__(self, name: str) -> bytes:
        """Contents of an object; RepoFailed when it is missing or can't be read."""
        into, out = self._process.stdin, self._process.stdout
        if into is None or out is None:
            raise RepoFailed("no pipes to git")
        with contextlib.suppress(BrokenPipeError):
            into.write(name.encode() + b"\n")
            into.flush()
        head = out.readline().split()
        if len(head) != 3:
            raise RepoFailed(f"the repository is broken: {name} can't be read; mbxctl archive rebuild remakes it")
        size = int(head[2])
        data = out.read(size + 1)
        if len(data) != size + 1:
            raise RepoFailed(f"git ended while {name} was read")
        return data[:size]


@contextlib.contextmanager
def _as_repo_failed() -> Iterator[None]:
    try:
        yield
    except NotOurs as error:
        raise RepoFailed(str(error)) from None
    except OSError as error:
        raise RepoFailed(f"{error.filename or 'the archive'}: {error.strerror}") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.terminate()
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()


def _verb(command: list[str]) -> str:
    """The subcommand, for messages."""
    words = iter(command[1:])
    for word in words:
        if word == "-c":
            next(words)
        elif not word.startswith("-"):
            return f"git {word}"
    return "git"


def _meaning(verb: str, code: int, said: str, *, timed_out: bool) -> RepoFailed:
    """What a failure means for people."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    word = (lines[-1] if lines else f"exit code {code}")[:300]
    if timed_out:
        return RepoFailed(f"{verb} took too long")
    if "but expected" in said or "reference already exists" in said:
        return RepoMoved(f"the branch was moved by somebody else: {word}")
    if _FULL.search(said) or code == -25:  # SIGXFSZ
        return RepoFailed(f"no room for the archive: {word}")
    if _NEWER.search(said):
        return RepoFailed(
            f"a newer Git made the repository ({word}). It was left as it is: install that Git, or run mbxctl archive "
            "rebuild, which puts it aside and begins anew"
        )
    locked = _LOCKED.search(said)
    if locked is not None:
        return RepoFailed(f"the repository is locked ({locked[1]}): end what works in it or remove that file")
    return RepoFailed(f"{verb}: {word}")


def _past(line: str) -> PastCommit:
    try:
        hexsha, email, seq, compared, at, summary = line.split("\x1f", 5)
        ours = email == COMMITTER_EMAIL
        number = int(seq) if ours and seq.isascii() and seq.isdigit() else None
        return PastCommit(hexsha, number, bool(compared), summary, float(at or 0))
    except ValueError:
        raise RepoFailed(f"git tells of a commit in words that can't be read: {line[:80]!r}") from None
