"""A real systemd user manager for a user who is not root, with a home, a runtime directory and a cgroup of its own.

Needs root, to become that user and to make the cgroup; works where process 1 is not systemd. Whatever was started
lives in the cgroup and ends with it. Source: systemd(1), user@.service(5), sd_booted(3).
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.daemon import PATIENCE, leftovers, wait_until
from tests.support.shim_process import ShimProcess

ACCOUNT = "nobody"
PROGRAMS = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
HIERARCHIES = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup")
"""Where systemd keeps its groups: in a hybrid of both versions (two places), in version 1, in version 2."""
BOOTED = Path("/run/systemd/system")
"""sd_booted(3) asks for this directory alone."""


class Unable(Exception):
    """This machine can't do it; why."""


class User:
    """The account, its manager and an installation of the project that it may run. Use as a context manager."""

    def __init__(self) -> None:
        program = next((path for path in PROGRAMS if os.access(path, os.X_OK)), None)
        if program is None or shutil.which("systemctl") is None:
            raise Unable("systemd is not installed")
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            raise Unable("needs root and setpriv, to run a manager for another user")
        try:
            account = pwd.getpwnam(ACCOUNT)
        except KeyError:
            raise Unable(f"there is no account {ACCOUNT}") from None
        self._program = program
        self._as_user = ["setpriv", "--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--clear-groups"]
        self._uid = account.pw_uid
        self._manager: subprocess.Popen[bytes] | None = None
        self._groups: list[Path] = []
        self._made_booted = False
        self.root = Path(tempfile.mkdtemp(prefix="mbxd"))
        self.home = self.root / "home"
        self.runtime = self.root / "run"
        self.bin = self.root / "venv/bin"
        os.chown(self.root, self._uid, account.pw_gid)
        for folder in (self.home, self.runtime):
            folder.mkdir(mode=0o700)
            os.chown(folder, self._uid, account.pw_gid)
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.home),
            "USER": ACCOUNT,
            "XDG_RUNTIME_DIR": str(self.runtime),
        }

    def __enter__(self) -> Self:
        try:
            self._install()
            self._start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._manager is not None:
            if self._manager.poll() is None:
                self.systemctl("exit", check=False)
            try:
                self._manager.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._manager.kill()
                self._manager.wait(PATIENCE)
        wait_until("the cgroup to be empty", self._emptied)
        for group in self._groups:
            for folder in sorted(group.rglob("*/"), reverse=True):
                folder.rmdir()
            group.rmdir()
        if self._made_booted:
            BOOTED.rmdir()
        strays = leftovers(self.root)
        shutil.rmtree(self.root)
        assert not strays, f"left behind: {strays}"

    # the account's commands

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command of the account."""
        done = subprocess.run(
            [*self._as_user, "env", *command],  # env, for setpriv may find another program than the named one
            env=self.env,
            cwd=self.home if self.home.is_dir() else "/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert not check or done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
        return done

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        return self.run("systemctl", "--user", "--no-pager", *arguments, check=check).stdout.strip()

    def mbxctl(self, *arguments: str, check: bool = True) -> Any:
        """The one JSON document of a command of ours."""
        return json.loads(self.run("mbxctl", *arguments, "--json", check=check).stdout)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.systemctl("show", unit, "--property", name, "--value")

    def main_pid(self) -> int:
        """The daemon that the manager runs; 0 when there is none."""
        return int(self.show("mbxd.service", "MainPID"))

    def shim(self) -> ShimProcess:
        return ShimProcess(self.env, command=[*self._as_user, "env", str(self.bin / "mbx-mcp")], cwd=self.home)

    # how it is made

    def _install(self) -> None:
        """A virtual environment in which the account finds what this one has."""
        # The interpreter of the tests may lie in a home that nobody else may enter.
        interpreter = next((path for path in _interpreters() if self._runs(path)), None)
        if interpreter is None:
            raise Unable(f"{ACCOUNT} can run no Python {sys.version_info[0]}.{sys.version_info[1]} here")
        self.run(interpreter, "-m", "venv", "--without-pip", str(self.bin.parent))
        packages = next(self.bin.parent.glob("lib/python*/site-packages"))
        mine = [path for path in sys.path if path.endswith("site-packages")]
        lines = [f"import site; site.addsitedir({path!r})\n" for path in mine]
        (packages / "all.pth").write_text("".join(lines))
        for entry in metadata.distribution("mbxd").entry_points:
            module, _, function = entry.value.partition(":")
            script = self.bin / entry.name
            script.write_text(
                f"#!{self.bin}/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
            )
            script.chmod(0o755)
        tried = self.run("mbxd", "--version", check=False)
        if tried.returncode != 0:
            raise Unable(f"{ACCOUNT} can't run this installation: {tried.stderr[-500:]}")

    def _runs(self, interpreter: str) -> bool:
        code = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
        return self.run(interpreter, "-c", code, check=False).returncode == 0

    def _start(self) -> None:
        try:
            if not BOOTED.is_dir():
                BOOTED.mkdir(parents=True)
                self._made_booted = True
            for hierarchy in map(Path, HIERARCHIES):
                if (hierarchy / "cgroup.procs").exists():
                    group = hierarchy / self.root.name
                    group.mkdir()
                    self._groups.append(group)
                    for path in (group, *group.iterdir()):
                        os.chown(path, self._uid, -1)
        except OSError as error:
            raise Unable(f"no cgroup can be made here: {error}") from None
        # Its first act is to move itself: the manager makes the groups of its units below its own.
        enter = (
            'for group; do [ "$group" = -- ] && break; echo $$ > "$group/cgroup.procs" || exit 1; shift; done; shift; '
        )
        log = self.root / "manager.log"
        with log.open("wb") as out:
            self._manager = subprocess.Popen(
                [
                    *("sh", "-c", enter + 'exec "$@"', "sh", *map(str, self._groups), "--"),
                    # The end of the tests, however it comes, is the manager's.
                    *(*self._as_user, "--pdeathsig", "TERM", self._program, "--user"),
                ],
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            wait_until("the manager", lambda: self._answers(log))
        except AssertionError:
            raise Unable(f"the user manager does not come up here: {log.read_text()[-1000:]}") from None

    def _answers(self, log: Path) -> bool:
        assert self._manager is not None
        if self._manager.poll() is not None:
            raise Unable(f"the user manager ended at once: {log.read_text()[-1000:]}")
        return self.systemctl("is-system-running", check=False) in {"running", "degraded"}

    def _emptied(self) -> bool:
        """Kill what is left in the groups; whether nothing was."""
        left = {
            int(pid)
            for group in self._groups
            for file in group.rglob("cgroup.procs")
            for pid in file.read_text().split()
        }
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


def _interpreters() -> list[str]:
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = [os.path.realpath(sys.executable), shutil.which(name, path="/usr/local/bin:/usr/bin")]
    return [path for path in found if path is not None]
