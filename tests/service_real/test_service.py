"""The units as `mbxctl service install` writes them, under a real user manager of systemd."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.service_real.manager import User
from tests.support.daemon import stopped, wait_until
from tests.support.shim_process import ShimProcess, call, initialize, request

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]

CROWD = 10
WATCHDOG_S = 2
"""Instead of the unit's 30 s; all else is the unit's own."""
START_LIMIT = 5
"""The unit's StartLimitBurst."""
GIVEN_UP = object()
SWEEP_S = 20
"""Less than the 30 s between two sweeps over the process table."""


def opened(stack: ExitStack, user: User) -> ShimProcess:
    """A shim whose client has introduced itself."""
    shim = stack.enter_context(user.shim())
    shim.ask(initialize(name="claude-code"))
    return shim


def result(shim: ShimProcess, arguments: dict[str, Any]) -> Any:
    return shim.ask(call(arguments))["result"]["structuredContent"]


def register(shim: ShimProcess, name: str) -> Any:
    registered = result(shim, {"action": "register", "name": name, "role": "backend"})
    assert registered["created"] is True, registered
    return registered


def gone(pid: int) -> None:
    wait_until(f"the end of {pid}", lambda: not os.path.exists(f"/proc/{pid}"))


def served_by_the_service(user: User) -> int:
    """The daemon that answers; it must be the service's."""
    pid = user.main_pid()
    assert pid > 0, user.systemctl("status", "mbxd.service", check=False)
    assert user.mbxctl("status")["pid"] == pid
    return pid


def restarted(user: User, old: int) -> int:
    """The service's next daemon, when it is ready."""
    wait_until("the next daemon", lambda: user.main_pid() not in {0, old})
    wait_until("READY", lambda: user.show("mbxd.service", "ActiveState") == "active")
    return user.main_pid()


def test_installed_enabled_and_ready(user: User) -> None:
    installed = user.mbxctl("service", "install")
    assert [os.path.basename(path) for path in installed["installed"]] == ["mbxd.socket", "mbxd.service"]
    assert user.show("mbxd.service", "ActiveState") == "active"  # Type=notify: it has said READY=1
    assert user.show("mbxd.service", "StatusText") == "0 identities"
    for unit in user.mbxctl("service", "status")["units"]:
        assert unit["installed"] is unit["current"] is True
        assert (unit["active"], unit["enabled"]) == ("active", "enabled")
    served_by_the_service(user)
    assert user.show("mbxd.socket", "Listen") == f"{user.runtime}/mbx/mbxd.sock (Stream)"
    assert (user.runtime / "mbx/mbxd.sock").stat().st_mode & 0o777 == 0o600
    assert (user.runtime / "mbx").stat().st_mode & 0o777 == 0o700
    # As new, and as often as one likes.
    again = user.mbxctl("service", "install")
    assert again == installed
    served_by_the_service(user)


def test_git_works_in_the_units_sandbox(user: User) -> None:
    user.mbxctl("service", "install")
    with ExitStack() as stack:
        shim = opened(stack, user)
        arguments = {"project_key": str(user.home / "shop"), "program": "claude-code", "model": "opus"}
        made = shim.ask(request("tools/call", {"name": "create_agent_identity", "arguments": arguments}))["result"]
        assert made["isError"] is False, made
        name = made["structuredContent"]["name"]
        archive = wait_until("the commit", lambda: archived(user))
        assert archive["error"] is None
        profile = "show", f"HEAD:projects/shop/agents/{name}/profile.json"
        assert json.loads(user.run("git", "-C", archive["path"], *profile).stdout)["program"] == "claude-code"
    assert user.run("mbxctl", "archive", "verify").returncode == 0


def archived(user: User) -> Any:
    """The archive's state once it has all that is durable and something to show."""
    state = user.mbxctl("archive", "status")
    return state if state["commits"] and state["behind"] == 0 else None


def test_the_sandbox_lets_it_see_deaths_keep_mail_and_reload_its_configuration(user: User) -> None:
    user.mbxctl("service", "install")
    pid = served_by_the_service(user)
    with ExitStack() as stack:
        first, second = opened(stack, user), opened(stack, user)
        for shim, name in ((first, "shop-backend"), (second, "shop-frontend")):
            register(shim, name)
        arguments = {"to": ["shop-frontend"], "subject": "hello", "body": "über"}
        sent = first.ask(request("tools/call", {"name": "mbx_send", "arguments": arguments}))["result"]
        assert sent["isError"] is False, sent
        found = second.ask(request("tools/call", {"name": "mbx_search", "arguments": {"query": "über"}}))["result"]
        assert len(found["structuredContent"]["messages"]) == 1, found

        first.process.kill()
        began = time.monotonic()
        wait_until("the death", lambda: user.mbxctl("show", "shop-backend")["identity"]["holder"] is None)
        assert time.monotonic() - began < SWEEP_S, "seen by the sweep, not through the pidfd"

        assert user.mbxctl("status")["config_error"] is None
        folder = user.home / ".config/mbx"
        user.run("mkdir", "-p", str(folder))
        user.run("sh", "-c", f"echo 'naming = 3' > {folder}/config.toml")
        wait_until("the new configuration to be read", lambda: user.mbxctl("status")["config_error"])
    assert served_by_the_service(user) == pid


def test_a_call_starts_the_service_through_its_socket(user: User) -> None:
    user.mbxctl("service", "install")
    old = served_by_the_service(user)
    user.systemctl("stop", "mbxd.service")
    gone(old)
    assert user.show("mbxd.socket", "ActiveState") == "active"
    with ExitStack() as stack:
        register(opened(stack, user), "shop-backend")
        assert served_by_the_service(user) != old
    assert user.show("mbxd.service", "NRestarts") == "0"


def test_a_silent_daemon_is_ended_by_the_watchdog_and_replaced(user: User) -> None:
    folder = user.home / ".config/systemd/user/mbxd.service.d"
    user.run("mkdir", "-p", str(folder))
    (folder / "watchdog.conf").write_text(f"[Service]\nWatchdogSec={WATCHDOG_S}\n")
    user.mbxctl("service", "install")
    old = served_by_the_service(user)
    with ExitStack() as stack:
        shim = opened(stack, user)
        epoch = register(shim, "shop-backend")["epoch"]
        os.kill(old, signal.SIGSTOP)
        shim.send(call())  # it waits with the daemon that hangs, or comes to the next one
        new = restarted(user, old)
        gone(old)
        you = shim.receive()["result"]["structuredContent"]["you"]
        assert (you["name"], you["epoch"]) == ("shop-backend", epoch)
    assert served_by_the_service(user) == new
    assert user.show("mbxd.service", "NRestarts") == "1"


def test_whoever_waits_while_it_is_killed_gets_an_answer(user: User) -> None:
    user.mbxctl("service", "install")
    old = served_by_the_service(user)
    with ExitStack() as stack:
        inside = opened(stack, user)
        epoch = register(inside, "shop-backend")["epoch"]
        os.kill(old, signal.SIGSTOP)
        inside.send(call())
        crowd = [stack.enter_context(user.shim()) for _ in range(CROWD)]
        for shim in crowd:
            shim.ask(initialize(name="claude-code"))
        for number, shim in enumerate(crowd):
            shim.send(call({"action": "register", "name": f"shop-{number}", "role": "backend"}))
        wait_until("the crowd in the socket's backlog", lambda: waiting(user) >= CROWD)
        os.kill(old, signal.SIGKILL)
        for number, shim in enumerate(crowd):
            made = shim.receive()["result"]["structuredContent"]
            assert (made["identity"]["name"], made["created"]) == (f"shop-{number}", True), made
        you = inside.receive()["result"]["structuredContent"]["you"]
        assert (you["name"], you["epoch"]) == ("shop-backend", epoch)
        assert served_by_the_service(user) == restarted(user, old)
    assert user.show("mbxd.service", "NRestarts") == "1"


def waiting(user: User) -> int:
    """Connections to the daemon's socket that nobody has accepted yet."""
    # In /proc/net/unix the state of a connecting socket's other end is 02 until it is accepted (unix(7)).
    lines = Path("/proc/net/unix").read_text().splitlines()
    return len([line for line in lines if line.split()[5] == "02" and line.endswith(f"{user.runtime}/mbx/mbxd.sock")])


class Caller:
    """A shim that is called again and again by a thread of its own, until a call is refused or `end` is set."""

    def __init__(self, shim: ShimProcess) -> None:
        self.answered = 0
        self.refused: Any = None
        self.end = threading.Event()
        self._shim = shim
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while self.refused is None and not self.end.is_set():
            answer = self._shim.ask(call())
            if "error" in answer or answer["result"]["isError"]:
                self.refused = answer
            else:
                self.answered += 1


def came_on(callers: list[Caller], marks: list[int]) -> bool:
    """Whether each has had so many answers, or a refusal."""
    return all(caller.refused or caller.answered >= mark for caller, mark in zip(callers, marks, strict=True))


def test_restarts_go_unnoticed_and_a_stop_is_final(user: User) -> None:
    user.mbxctl("service", "install")
    with ExitStack() as stack:
        callers = [Caller(opened(stack, user)) for _ in range(4)]
        for caller in callers:
            stack.callback(caller.thread.join)
            stack.callback(caller.end.set)
            caller.thread.start()
        for how in ("restart", "kill", "manager"):
            old = served_by_the_service(user)
            if how == "restart":
                user.mbxctl("restart")
            elif how == "kill":
                os.kill(old, signal.SIGKILL)
            else:
                user.systemctl("restart", "mbxd.service")
            restarted(user, old)
            marks = [caller.answered + 2 for caller in callers]  # one call was under way
            wait_until("calls of everybody after it", functools.partial(came_on, callers, marks))
            assert [caller.refused for caller in callers] == [None] * len(callers), how
        old = served_by_the_service(user)
        user.mbxctl("stop")
        gone(old)
        # They ask on: nothing may start a daemon again, neither the socket nor they themselves.
        wait_until("everybody to be told", lambda: all(caller.refused for caller in callers))
        for caller in callers:
            assert caller.refused["result"]["structuredContent"]["error"]["code"] in {"DAEMON_DOWN", "OUTCOME_UNKNOWN"}
        for unit in ("mbxd.service", "mbxd.socket"):
            assert user.show(unit, "ActiveState") == "inactive"
        assert user.mbxctl("status", check=False)["error"]["code"] == "DAEMON_DOWN"


def test_a_daemon_that_was_started_without_it_gives_way(user: User) -> None:
    with ExitStack() as stack:
        shim = opened(stack, user)
        epoch = register(shim, "shop-backend")["epoch"]
        old = user.mbxctl("status")["pid"]
        user.mbxctl("service", "install")
        gone(old)
        assert served_by_the_service(user) != old
        you = result(shim, {"action": "list"})["you"]
        assert (you["name"], you["epoch"]) == ("shop-backend", epoch)
    assert user.show("mbxd.service", "NRestarts") == "0"


def test_a_daemon_that_does_not_give_way_is_left_alone(user: User) -> None:
    """Exit code 75 ends the trying; the socket still listens, so that the next call finds out how things are."""
    with ExitStack() as stack:
        shim = opened(stack, user)
        epoch = register(shim, "shop-backend")["epoch"]
        old = user.mbxctl("status")["pid"]
        with stopped(old):
            refused = user.mbxctl("service", "install", check=False)["error"]
            assert refused["code"] == "SYSTEMCTL_FAILED"
            assert "Created symlink" not in refused["message"]
            assert user.show("mbxd.service", "ExecMainStatus") == "75"
            assert user.show("mbxd.service", "ActiveState") == "failed"
            assert user.show("mbxd.service", "NRestarts") == "0"
        gone(old)  # it was asked to end, and now it can
        you = result(shim, {"action": "list"})["you"]
        assert (you["name"], you["epoch"]) == ("shop-backend", epoch)
        assert served_by_the_service(user) != old


def test_a_damaged_log_is_named_and_not_tried_for_ever(user: User) -> None:
    user.mbxctl("service", "install")
    with ExitStack() as stack:
        shim = opened(stack, user)
        register(shim, "shop-backend")
        user.mbxctl("stop")
        segment = min((user.home / ".local/state/mbx/registry").glob("*.wal"))
        whole = segment.read_bytes()
        segment.write_bytes(b"this is no log" + whole)
        refused = user.mbxctl("start", check=False)["error"]
        assert (refused["code"], "is damaged" in refused["message"]) == ("DAEMON_DOWN", True), refused
        assert user.show("mbxd.service", "ActiveState") in {"inactive", "failed"}
        told = result(shim, {"action": "list"})["error"]
        assert "is damaged" in told["message"], told
        segment.write_bytes(whole)
        user.mbxctl("start")
        served_by_the_service(user)
        assert result(shim, {"action": "list"})["you"]["name"] == "shop-backend"


def test_stopped_started_restarted_uninstalled(user: User) -> None:
    user.mbxctl("service", "install")
    with ExitStack() as stack:
        shim = opened(stack, user)
        epoch = register(shim, "shop-backend")["epoch"]
        old = served_by_the_service(user)

        user.mbxctl("stop")
        gone(old)
        assert user.show("mbxd.service", "ActiveState") == "inactive"
        assert user.show("mbxd.socket", "ActiveState") == "inactive"
        refused = result(shim, {"action": "list"})
        assert refused["error"]["code"] == "DAEMON_DOWN", refused
        assert user.main_pid() == 0

        user.mbxctl("start")
        second = served_by_the_service(user)
        assert result(shim, {"action": "list"})["you"]["epoch"] == epoch
        user.mbxctl("restart")
        third = served_by_the_service(user)
        assert len({old, second, third}) == 3
        assert result(shim, {"action": "list"})["you"]["epoch"] == epoch

        user.mbxctl("stop")  # the units come and go whatever the mark of a stop says
        user.mbxctl("service", "install")
        fourth = served_by_the_service(user)
        assert result(shim, {"action": "list"})["you"]["epoch"] == epoch

        removed = user.mbxctl("service", "uninstall")["removed"]
        assert len(removed) == 2
        gone(fourth)
        assert not [path for path in (user.home / ".config/systemd/user").rglob("*") if path.is_file()]
        assert user.show("mbxd.service", "LoadState") == "not-found"
        # Without the service a call starts a daemon by itself, and nothing was lost.
        assert result(shim, {"action": "list"})["you"]["epoch"] == epoch
        own = user.mbxctl("status")["pid"]
        assert own not in {old, second, third, fourth}
        user.mbxctl("stop")
        gone(own)


def test_a_daemon_that_dies_at_once_every_time_is_given_up(user: User) -> None:
    """The unit's start limit; a person's `mbxctl start` begins anew."""
    user.mbxctl("service", "install")
    while pid := wait_until("the next daemon or the end of trying", lambda: user.main_pid() or given_up(user)):
        if pid is GIVEN_UP:
            break
        os.kill(pid, signal.SIGKILL)
        gone(pid)
    assert user.show("mbxd.service", "Result") in {"start-limit-hit", "signal"}
    assert int(user.show("mbxd.service", "NRestarts")) == START_LIMIT
    user.mbxctl("start")
    served_by_the_service(user)


def given_up(user: User) -> object:
    return GIVEN_UP if user.show("mbxd.service", "ActiveState") == "failed" else None
