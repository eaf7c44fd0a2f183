"""`mbxctl service`: hand the daemon to systemd's user manager.

Owns the two unit files in `~/.config/systemd/user` and the systemctl calls around them. Never touches system
units, never needs root, and removes only what it wrote. Source: systemd.unit(5), systemctl(1).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from mbx_client import launch
from mbxctl import link
from mbxctl.failure import Failure
from mbxctl.render import Output

UNITS = ("mbxd.socket", "mbxd.service")
_TIMEOUT_S = 60.0
"""systemctl waits for Type=notify to be ready; the unit's own start limit is 60 s."""


def unit_source() -> Path:
    """Where the shipped units are: inside the package, or in the repository of an editable install."""
    packaged = Path(__file__).parent / "systemd"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "systemd"


def unit_target() -> Path:
    """Where a user's own units live."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user"


def unit_texts() -> dict[str, str]:
    """Unit name -> text, with ExecStart naming this installation's daemon."""
    texts = {}
    for name in UNITS:
        try:
            text = (unit_source() / name).read_text(encoding="utf-8")
        except OSError as error:
            raise Failure("UNITS_MISSING", f"the shipped unit is missing: {error}", "Reinstall mbxd.") from None
        lines = [f"ExecStart={_exec_start()}" if line.startswith("ExecStart=") else line for line in text.splitlines()]
        texts[name] = "\n".join(lines) + "\n"
    return texts


def _exec_start() -> str:
    script = Path(sys.executable).parent / "mbxd"
    # The same interpreter in both forms; the module form serves installs without scripts.
    return _quoted(script) if os.access(script, os.X_OK) else f"{_quoted(Path(sys.executable))} -m mbxd"


def _quoted(path: Path) -> str:
    text = str(path)
    if "\n" in text or '"' in text or "\\" in text:
        raise Failure("PATH_UNUSABLE", f"systemd can't be told this path: {text!r}", "Install mbxd elsewhere.")
    # % starts a specifier, $ a variable (systemd.service(5), COMMAND LINES).
    text = text.replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if " " in text else text


def run_install(out: Output, *, dry_run: bool) -> int:
    """Write the units, reload, enable and start the socket and the service."""
    texts = unit_texts()
    target = unit_target()
    commands = [["daemon-reload"], ["enable", "--now", "mbxd.socket", "mbxd.service"]]
    if dry_run:
        return _show_plan(out, {str(target / name): text for name, text in texts.items()}, [], commands)
    _need_manager()
    if _default_place():
        launch.clear_marks(link.places())  # like `start`: the user asks for a daemon now
    target.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        _write(target / name, text)
    for command in commands:
        _systemctl(*command)
    if out.json:
        out.document({"installed": [str(target / name) for name in UNITS], "exec_start": _exec_start()})
    for name in UNITS:
        out.data(f"installed {target / name}")
    out.talk("enabled and started; `loginctl enable-linger` keeps it running while you are logged out")
    return 0


def run_uninstall(out: Output, *, dry_run: bool) -> int:
    """Disable, stop and remove the units. The state stays."""
    target = unit_target()
    present = [target / name for name in UNITS if (target / name).exists()]
    commands = [["disable", "--now", "mbxd.socket", "mbxd.service"], ["daemon-reload"]]
    if dry_run:
        return _show_plan(out, {}, [str(path) for path in present], commands if present else [])
    if present:
        _need_manager()
        _systemctl(*commands[0])
        for path in present:
            path.unlink(missing_ok=True)
        _systemctl(*commands[1])
    if out.json:
        out.document({"removed": [str(path) for path in present]})
    for path in present:
        out.data(f"removed {path}")
    if not present:
        out.talk(f"nothing is installed in {target}")
    return 0


def run_status(out: Output) -> int:
    """What is installed, and what the manager says of it. Looks only."""
    target = unit_target()
    units = []
    for name in UNITS:
        path = target / name
        installed = path.exists()
        current = installed and path.read_text(encoding="utf-8", errors="replace") == unit_texts()[name]
        units.append(
            {
                "unit": name,
                "path": str(path),
                "installed": installed,
                "current": current,
                "active": _state("is-active", name),
                "enabled": _state("is-enabled", name),
            }
        )
    manager = _manager_state()
    if out.json:
        out.document({"manager": manager, "units": units})
        return 0
    for unit in units:
        what = (
            "not installed"
            if not unit["installed"]
            else "installed"
            if unit["current"]
            else "installed, differs from this version's"
        )
        out.data(f"{unit['unit']}: {what}, {unit['active'] or 'unknown'}, {unit['enabled'] or 'unknown'}")
    if manager is None:
        out.talk("no systemd user manager answers here; `mbxctl start` runs the daemon without one")
    elif not all(unit["installed"] and unit["current"] for unit in units):
        out.talk("`mbxctl service install` installs this version's units")
    return 0


def installed_for_default_place() -> bool:
    """Whether the socket unit is installed and serves the place where this command looks."""
    return _default_place() and (unit_target() / "mbxd.socket").exists()


def start_quietly() -> bool:
    """Start socket and service; whether that worked."""
    # People restart as often as they like: the start limit is there for crashes.
    return _quietly("reset-failed", *UNITS) and _quietly("start", *UNITS)


def restart_quietly() -> bool:
    """Restart the service under its socket; whether that worked."""
    return _quietly("reset-failed", *UNITS) and _quietly("restart", "mbxd.service")


def stop_quietly() -> bool:
    """Stop the socket and the service; whether that worked."""
    return _quietly("stop", *UNITS)


def socket_is_active() -> bool:
    """Whether systemd listens for the daemon."""
    return _state("is-active", "mbxd.socket") == "active"


def failed_units() -> list[str]:
    """Units that systemd has given up on."""
    return [name for name in UNITS if _state("is-failed", name) == "failed"]


def _default_place() -> bool:
    return not (os.environ.get("MBX_STATE_DIR") or os.environ.get("MBX_SOCKET"))


def _quietly(*args: str) -> bool:
    try:
        return _run(*args).returncode == 0
    except Failure:
        return False


def _show_plan(out: Output, writes: dict[str, str], removes: list[str], commands: list[list[str]]) -> int:
    words = [" ".join(["systemctl", "--user", *command]) for command in commands]
    if out.json:
        out.document({"dry_run": True, "writes": writes, "removes": removes, "runs": words})
        return 0
    for path, text in writes.items():
        out.data(f"# write {path}")
        for line in text.splitlines():
            out.data(line)
    for path in removes:
        out.data(f"# remove {path}")
    for word in words:
        out.data(f"# run {word}")
    out.talk("dry run: nothing was changed")
    return 0


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Failure("IO_ERROR", f"could not write {path}: {error}", "Check the directory's permissions.") from None


def _need_manager() -> None:
    if _manager_state() is None:
        raise Failure(
            "NO_USER_MANAGER",
            "no systemd user manager answers for this user; nothing was changed.",
            "Log in through a real session (not su or sudo), or run the daemon without systemd: mbxctl start",
        )


def _manager_state() -> str | None:
    if shutil.which("systemctl") is None:
        return None
    try:
        word = _run("is-system-running").stdout.strip()
    except Failure:
        return None
    # Degraded is another unit's failure; offline and unknown mean that nobody answered.
    return word if word in {"running", "degraded", "starting", "initializing", "maintenance"} else None


def _state(question: str, unit: str) -> str | None:
    if shutil.which("systemctl") is None:
        return None
    try:
        return _run(question, unit).stdout.strip() or None
    except Failure:
        return None


def _systemctl(*args: str) -> None:
    done = _run(*args)
    if done.returncode != 0:
        # What it did on the way is told on stderr as well.
        said = [line for line in done.stderr.splitlines() if not line.startswith(("Created symlink", "Removed"))]
        raise Failure(
            "SYSTEMCTL_FAILED",
            f"systemctl --user {' '.join(args)} failed: {' '.join(said).strip() or f'exit {done.returncode}'}",
            "See: journalctl --user -u mbxd.service -n 30",
        )


def _run(*args: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["systemctl", "--user", "--no-pager", "--no-ask-password", *args],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure("SYSTEMCTL_FAILED", f"systemctl did not run: {error}", "Is systemd installed?") from None
