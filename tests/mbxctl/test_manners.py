"""Terminals, pipes, looking without touching, and unreachable daemons."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mbxctl.conftest import Place
from tests.mbxctl.stub import HOLDER, TableDaemon, listing, row

Serve = Callable[..., TableDaemon]

LOOKING = [
    ("list",),
    ("list", "--all"),
    ("show", "a-b"),
    ("why", "a-b"),
    ("log",),
    ("stats",),
    ("watch",),
    ("status",),
    ("release",),
]


def fingerprint(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        place = path.lstat()
        digest.update(f"{path} {place.st_mode} {place.st_size} {place.st_mtime_ns}".encode())
    return digest.hexdigest()


@pytest.mark.parametrize("args", LOOKING)
def test_looking_without_a_daemon_says_so_and_creates_nothing(place: Place, args: tuple[str, ...]) -> None:
    before = fingerprint(place.root)
    plain = place.run(*args)
    assert (plain.code, plain.out) == (69, "")
    assert "no daemon is running" in plain.err
    assert "mbxctl start" in plain.err
    as_json = place.run(*args, "--json")
    assert as_json.code == 69
    assert as_json.document["error"]["code"] == "DAEMON_DOWN"
    assert fingerprint(place.root) == before


def test_doctor_and_service_look_only(place: Place) -> None:
    before = fingerprint(place.root)
    assert place.run("doctor").code == 0
    assert place.run("service", "status").code == 0
    assert place.run("service", "install", "--dry-run").code == 0
    assert fingerprint(place.root) == before


def test_status_without_a_daemon_keeps_its_shape(place: Place) -> None:
    document = place.run("status", "--json").document
    assert (document["running"], document["pid"], document["stopped"]) == (False, None, False)


def on_terminal(place: Place, *args: str, answer: bytes = b"", **env: str) -> tuple[int, str]:
    """Run with a pseudo-terminal for all three streams; (exit code, all that was shown)."""
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "mbxctl", *args],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=place.project,
            env={**place.env, "TERM": "xterm-256color", "COLUMNS": "120", **env},
            start_new_session=True,
        )
        os.close(follower)
        if answer:
            os.write(leader, answer)
        shown = b""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and select.select([leader], [], [], 20)[0]:
            try:
                shown += os.read(leader, 65536)
            except OSError:  # EIO: the last writer has gone
                break
        return process.wait(10), shown.decode()
    finally:
        os.close(leader)


def test_a_terminal_gets_a_table_with_colours(place: Place, serve: Serve) -> None:
    serve(identity__list=listing(row(holder=HOLDER, state="live", role="x\x1b]0;t\x07[bold]y")))
    code, shown = on_terminal(place, "list")
    assert code == 0
    assert "\x1b[" in shown
    assert "\x1b]0" not in shown
    assert r"x\x1b]0;t\x07[bold]y" in shown


def test_doctor_and_log_are_tables_on_a_terminal(place: Place, serve: Serve) -> None:
    assert "CHECK" in on_terminal(place, "doctor")[1]
    entry = {
        "seq": 9,
        "at": "t",
        "what": "lost",
        "name": "a-b",
        "epoch": 2,
        "who": "x\x1b[2J",
        "pid": 1,
        "reason": None,
    }
    serve(admin__log={"entries": [entry], "truncated": False})
    code, shown = on_terminal(place, "log")
    assert code == 0
    assert "WHAT" in shown
    assert "\x1b[2J" not in shown


PLAIN = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_window_folds_no_word(place: Place, serve: Serve, width: int) -> None:
    long = row("shop-frontend", state="detached", role="frontend", holder={**HOLDER, "pid": 22405}, unread=12)
    serve(identity__list=listing(long, row("shop-backend")), admin__log={"entries": [LOGGED], "truncated": False})
    code, shown = on_terminal(place, "list", COLUMNS=str(width))
    lines = PLAIN.sub("", shown).replace("\r", "").splitlines()
    assert code == 0
    assert [line.split()[:2] for line in lines[:3]] == [
        ["NAME", "STATE"],
        ["shop-frontend", "detached"],
        ["shop-backend", "vacant"],
    ]
    assert (
        lines[0].split()[2:]
        == {
            40: ["UNREAD"],
            60: ["ROLE", "HOLDER", "UNREAD"],
            80: ["ROLE", "PROJECT", "HOLDER", "UNREAD"],
            120: ["ROLE", "PROJECT", "HOLDER", "UNREAD", "LAST-ACTIVE"],
        }[width]
    )
    assert ("12" in lines[1].split(), "claude-code:22405" in lines[1].split()) == (True, width > 40)
    assert any("wider window also shows" in line for line in lines) == (width < 120)
    assert max(map(len, lines[:3])) <= width
    assert "lost" in on_terminal(place, "log", COLUMNS=str(width))[1].split()


def test_a_long_word_is_folded_and_takes_no_other_column_away(place: Place, serve: Serve) -> None:
    serve(identity__list=listing(row(role="x" * 60)))
    _code, shown = on_terminal(place, "list", COLUMNS="100")
    assert "LAST-ACTIVE" in shown
    assert "x" * 60 not in shown


def test_no_color(place: Place, serve: Serve) -> None:
    serve(identity__list=listing(row()))
    code, shown = on_terminal(place, "list", NO_COLOR="1")
    assert code == 0
    assert "shop-backend" in shown
    assert "[3" not in shown.replace("[36", "[3")


@pytest.mark.parametrize(("answer", "exit_code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1)])
def test_free_asks_on_a_terminal(place: Place, serve: Serve, answer: bytes, exit_code: int) -> None:
    live = row(state="live", holder=HOLDER)
    stub = serve(
        identity__show={"identity": live, "epoch": 1, "aliases": [], "warnings": []},
        admin__free={"identity": row(), "epoch": 2, "changed": True, "warnings": []},
    )
    code, shown = on_terminal(place, "free", "shop-backend", "--reason", "r", answer=answer)
    assert "held by claude-code (pid 4711)" in shown
    assert code == exit_code
    assert ("admin.free" in stub.methods()) == (exit_code == 0)


def test_a_reader_that_leaves_is_no_error(place: Place, serve: Serve) -> None:
    serve(identity__list=listing(*(row(f"name-{i}") for i in range(5000))))
    process = subprocess.Popen(
        [sys.executable, "-m", "mbxctl", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=place.project,
        env={**place.env, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"NAME")
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(20) in {0, 141}
    assert b"Traceback" not in errors
    assert b"Broken" not in errors


LOGGED = {"seq": 9, "at": "t", "what": "lost", "name": "a-b", "epoch": 2, "who": None, "pid": 1, "reason": None}
LETTER = {"id": "01K0", "from": "a-b", "subject": "s", "kind": "message", "needs_reply": False, "state": "unread"}
CHANGE = {"at": "t", "name": "a-b", "project": "shop", "what": "lost", "who": None, "reason": None, "state": "vacant"}


@pytest.mark.parametrize(
    "args",
    [
        ("list",),
        ("list", "--json"),
        ("list", "--all", "--"),  # by way of the parser
        ("log",),
        ("inbox",),
        ("watch",),
        ("doctor",),
        ("doctor", "--json"),
        ("show", "a-b", "--json"),
        ("--help",),
        ("--version",),
    ],
)
def test_every_command_ends_alike_when_nobody_reads(place: Place, serve: Serve, args: tuple[str, ...]) -> None:
    stub = serve(
        identity__list=listing(row()),
        identity__show={"identity": row(), "epoch": 1, "aliases": [], "warnings": []},
        admin__log={"entries": [LOGGED], "truncated": False},
        mail__inbox={"messages": [{**LETTER, "sent_at": "t"}], "before": None, "warnings": [], "next": None},
        events__subscribe={"subscribed": True, "seq": 1},
    )
    stub.pushes = [{"jsonrpc": "2.0", "method": "events.change", "params": {**CHANGE, "epoch": 2}}]
    stub.keep_open = True
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "mbxctl", *args]
        done = subprocess.run(
            command,
            stdout=writer,
            stderr=subprocess.PIPE,
            cwd=place.project,
            env=place.env,
            timeout=30,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.returncode == 141, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Broken" not in done.stderr


def test_shell_completion_is_clicks_own(place: Place) -> None:
    assert "_MBXCTL_COMPLETE=bash_complete" in place.run(_MBXCTL_COMPLETE="bash_source").out


@pytest.mark.parametrize("closed", [1, 2])
def test_closed_streams(place: Place, serve: Serve, closed: int) -> None:
    serve(identity__list=listing(row()))
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m mbxctl list {closed}>&-"],
        capture_output=True,
        cwd=place.project,
        env=place.env,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_a_failure_not_a_traceback(place: Place, serve: Serve) -> None:
    serve(identity__list=listing(row()))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mbxctl", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=place.project,
            env=place.env,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_ctrl_c_ends_a_watch_well(place: Place, serve: Serve) -> None:
    stub = serve(events__subscribe={"subscribed": True, "seq": 1}, identity__list=listing())
    stub.keep_open = True
    process = subprocess.Popen(
        [sys.executable, "-m", "mbxctl", "watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=place.project,
        env={**place.env, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    assert b"watching" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (0, b"", b"")


def test_a_silent_daemon_is_not_called_down(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(place.socket))
        listener.listen(4)
        result = place.run("status", "--json")
    assert result.code == 5
    assert result.document["error"]["code"] == "DAEMON_UNRESPONSIVE"


def test_a_bad_environment_is_a_usage_error(place: Place) -> None:
    result = place.run("list", MBX_STATE_DIR="relative")
    assert result.code == 2
    assert "MBX_STATE_DIR must be an absolute path" in result.err
    assert place.run("doctor", MBX_STATE_DIR="relative").code == 1


def test_a_bad_project_file_is_named(place: Place, serve: Serve) -> None:
    serve(identity__list=listing())
    (place.project / ".mbx.toml").write_text("project = 3\n")
    result = place.run("list")
    assert result.code == 2
    assert ".mbx.toml" in result.err


def test_a_daemon_that_answers_nonsense_is_still_one_document(place: Place, serve: Serve) -> None:
    serve(identity__list={"unexpected": True})
    result = place.run("list")
    assert result.code == 1
    assert "INTERNAL" in result.err
    assert place.run("--json", "show", "a-b").document["error"]["code"] == "INTERNAL"


def test_a_working_directory_that_has_gone(place: Place, serve: Serve) -> None:
    stub = serve(identity__list=listing(row()))
    done = subprocess.run(
        ["sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m mbxctl list"],
        capture_output=True,
        cwd=place.root,
        env=place.env,
        timeout=30,
        check=False,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert stub.calls[-1] == ("identity.list", {"all": True})


def test_an_unresponsive_daemon_is_not_started_again(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(place.socket))
        listener.listen(8)
        result = place.run("start", "--json")
    assert (result.code, result.document["error"]["code"]) == (5, "DAEMON_UNRESPONSIVE")
