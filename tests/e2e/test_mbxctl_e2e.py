"""Every command of mbxctl against the real daemon, and beneath an agent with a real shim."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mbx_client import paths
from mbxctl import lockfile
from mbxctl.touring import Handle
from tests.mbxctl.conftest import Place, Result, place
from tests.support.daemon import wait_until

__all__ = ["place"]

# An agent CLI on a leash: beneath it a real shim, and whatever command it is told to run.
HOST = """
import json, subprocess, sys
shim = subprocess.Popen([sys.executable, "-m", "mbx_mcp.main"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def rpc(message):
    shim.stdin.write(json.dumps(message).encode() + b"\\n")
    shim.stdin.flush()
    return json.loads(shim.stdout.readline())
client = {"name": "claude-code", "version": "1"}
rpc({"jsonrpc": "2.0", "id": 0, "method": "initialize",
     "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}})
print(json.dumps({"shim": shim.pid}), flush=True)
for number, line in enumerate(sys.stdin, start=1):
    order = json.loads(line)
    if "run" in order:
        done = subprocess.run(order["run"], capture_output=True, text=True, timeout=30)
        answer = [done.returncode, done.stdout, done.stderr]
    else:
        answer = rpc({"jsonrpc": "2.0", "id": number, "method": "tools/call",
                      "params": {"name": "mbx_identity", "arguments": order["call"]}})["result"]
    print(json.dumps(answer), flush=True)
"""


class AgentCli:
    """A session: its host process, its shim, and commands run beneath it."""

    def __init__(self, place: Place) -> None:
        script = place.root / "claude"
        script.write_text(HOST)
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=place.project,
            env=place.env,
        )
        self.shim = Handle(int(self._answer()["shim"]))

    def call(self, **arguments: Any) -> dict[str, Any]:
        """One call of mbx_identity, as structured content."""
        result: dict[str, Any] = self._order({"call": arguments})["structuredContent"]
        return result

    def mbxctl(self, *args: str) -> Result:
        return Result(*self._order({"run": [sys.executable, "-m", "mbxctl", *args]}))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        gone = self.shim.wait_gone(12)
        if not gone:
            self.shim.kill()
        self.shim.close()
        assert gone, "the shim outlived its host"

    def _order(self, order: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 40)[0], "the host did not answer"
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def real(place: Place) -> Iterator[Place]:
    """A place with a daemon of its own, gone afterwards."""
    started = place.run("start", "--json")
    assert started.code == 0, started
    try:
        yield place
    finally:
        stopped = place.run("stop", "--json")
        assert stopped.code == 0, stopped
        assert no_daemon(place)


@pytest.fixture
def agent(real: Place) -> Iterator[AgentCli]:
    cli = AgentCli(real)
    yield cli
    cli.end()


def no_daemon(place: Place) -> bool:
    return lockfile.holder(paths.Places(str(place.state), str(place.socket), "/none")) is None


def needs_a_person(place: Place) -> None:
    if place.run("claim", "--json").document["error"]["code"] != "NOT_AN_AGENT":
        pytest.skip("this test run is itself beneath an agent CLI, where people's levers are refused")


def test_a_persons_round(real: Place) -> None:
    needs_a_person(real)
    registered = real.run("register", "shop-backend", "--role", "backend", "--description", "API", "--json").document
    assert registered["identity"]["holder"] is None
    assert real.run("list").out.splitlines()[1].split()[:4] == ["shop-backend", "vacant", "backend", "shop"]
    assert real.run("show", "shop-backend", "--json").document["identity"]["description"] == "API"
    assert real.run("why", "shop-backend", "--json").document["reason"] == "never-held"
    assert real.run("rename", "shop-backend", "shop-api").code == 0
    assert real.run("show", "shop-backend", "--json").document["identity"]["name"] == "shop-api"
    assert real.run("retire", "shop-api", "--json").document["identity"]["state"] == "retired"
    assert real.run("retire", "shop-api", "--json").document["changed"] is False
    assert real.run("unretire", "shop-api", "--json").document["identity"]["state"] == "vacant"
    assert real.run("free", "shop-api", "--reason", "why not", "--yes").code == 0
    whats = [entry["what"] for entry in real.run("log", "--json").document["entries"]]
    assert {"registered", "renamed", "retired", "unretired"} <= set(whats)
    assert real.run("log", "shop-api", "--limit", "1", "--json").document["truncated"] is True


def test_refusals_and_their_exit_codes(real: Place) -> None:
    needs_a_person(real)
    assert real.run("register", "shop-api", "--role", "api").code == 0
    expected = [
        (("show", "no-such"), 3, "UNKNOWN_IDENTITY"),
        (("free", "no-such", "--reason", "r", "--yes"), 3, "UNKNOWN_IDENTITY"),
        (("register", "shop-api", "--role", "api"), 4, "NAME_TAKEN"),
        (("register", "BAD", "--role", "api"), 2, "NAME_INVALID"),
        (("register", "good-one", "--role", "BAD\n"), 2, "ROLE_INVALID"),
        (("release",), 1, "NOT_AN_AGENT"),
    ]
    for args, exit_code, code in expected:
        result = real.run(*args, "--json")
        assert (result.code, result.document["error"]["code"], result.err) == (exit_code, code, ""), args


def test_status_stats_doctor(real: Place) -> None:
    status = real.run("status", "--json").document
    os.kill(status["pid"], 0)
    assert status["version"] == status["installed_version"]
    assert status["restart"]["needed"] is False
    assert "engine" in real.run("stats", "--json").document["parts"]
    result = real.run("doctor", "--json")
    assert (result.code, result.document["ok"]) == (0, True), result.out


def test_start_stop_restart(real: Place) -> None:
    pid = real.run("status", "--json").document["pid"]
    assert real.run("start", "--json").document == {
        "started": False,
        "pid": pid,
        "version": real.run("--version", "--json").document["version"],
        "socket": str(real.socket),
    }
    restarted = real.run("restart", "--json").document
    assert restarted["old_pid"] == pid != restarted["pid"]
    assert real.run("stop", "--json").document == {"stopped": True, "pid": restarted["pid"]}
    assert no_daemon(real)
    assert real.run("list").code == 69
    assert real.run("register", "a-b", "--role", "r").code == 69
    assert real.run("start", "--json").document["started"] is True
    assert real.run("status", "--json").document["running"] is True


# A daemon that takes its time: it says that it has begun, and goes on when somebody writes to its gate.
SLOW = """
import os, runpy, sys
open({begun!r}, "w").close()
with open({gate!r}, "rb", buffering=0) as gate:
    gate.read(1)
sys.path.remove({fake!r})
del sys.modules["mbxd"]
runpy.run_module("mbxd", run_name="__main__", alter_sys=True)
"""
START = """
from mbx_client import launch, paths
launch.start(paths.resolve(), 20)
"""


@contextlib.contextmanager
def slow_daemon(place: Place) -> Iterator[tuple[dict[str, str], int]]:
    """An environment in which daemons wait for a byte at a gate, and the gate."""
    fake, gate = place.root / "fake", place.root / "gate"
    (fake / "mbxd").mkdir(parents=True)
    (fake / "mbxd/__init__.py").touch()
    names = {"begun": str(place.root / "begun"), "gate": str(gate), "fake": str(fake)}
    (fake / "mbxd/__main__.py").write_text(SLOW.format(**names))
    os.mkfifo(gate)
    held = os.open(gate, os.O_RDWR)
    try:
        yield {**place.env, "PYTHONPATH": f"{fake}:{place.env['PYTHONPATH']}"}, held
    finally:
        os.close(held)  # whoever waits there goes on


def test_a_stop_outlasts_a_start_that_is_under_way(place: Place) -> None:
    """The daemon that is being started has not seen the mark: it must go as well."""
    with slow_daemon(place) as (env, gate):
        start = subprocess.Popen([sys.executable, "-c", START], env=env, stderr=subprocess.PIPE)
        stop: subprocess.Popen[str] | None = None
        try:
            wait_until("the daemon begins", (place.root / "begun").exists)
            command = [sys.executable, "-m", "mbxctl", "stop", "--json"]
            stop = subprocess.Popen(command, env=place.env, stdout=subprocess.PIPE, text=True)
            wait_until("the mark is there", (place.state / "stopped").exists)
            os.write(gate, b"x")
            out, _ = stop.communicate(timeout=40)
        finally:
            os.write(gate, b"x")
            _, complaint = start.communicate(timeout=40)
            if stop is not None and stop.poll() is None:
                stop.kill()
                stop.communicate()
            running = not no_daemon(place)
            place.run("stop")
    assert json.loads(out)["stopped"] is True
    assert complaint == b"", "its starter heard that it was ready"
    assert not running
    assert (place.state / "stopped").exists()


def test_a_stop_without_room_for_its_mark_stops_all_the_same(real: Place) -> None:
    (real.state / "stopped").mkdir()  # as on a full disk: nothing can be written there
    stopped = real.run("stop", "--json")
    try:
        assert stopped.code == 0
        assert stopped.document["stopped"] is True
        assert "warning: the mark of a stop could not be left" in stopped.err
        assert no_daemon(real)
        assert sorted(entry.name for entry in real.state.glob("stopped*")) == ["stopped"], "no temporary file is left"
        again = real.run("stop", "--json")
        assert again.document["error"]["code"] == "IO_ERROR", "nothing was done at all"
    finally:
        (real.state / "stopped").rmdir()


def test_a_command_that_acts_starts_a_daemon(place: Place) -> None:
    try:
        assert place.run("register", "shop-api", "--role", "api").code == 0
        assert place.run("list", "--json").document["identities"][0]["name"] == "shop-api"
    finally:
        assert place.run("stop").code == 0
    assert no_daemon(place)


def test_a_stopped_process_is_ended_by_the_lock_file(place: Place) -> None:
    pid = place.run("start", "--json").document["pid"]
    daemon = Handle(pid)
    stopper = None
    try:
        os.kill(pid, signal.SIGSTOP)
        stopper = subprocess.Popen(
            [sys.executable, "-m", "mbxctl", "stop", "--json"], env=place.env, stdout=subprocess.PIPE
        )
        # It waits for an answer, then signals; a stopped process takes the signal when it goes on.
        deadline = time.monotonic() + 30
        while not pending_sigterm(pid) and time.monotonic() < deadline:
            daemon.wait_gone(0.05)
        os.kill(pid, signal.SIGCONT)
        out, _ = stopper.communicate(timeout=30)
        assert json.loads(out) == {"stopped": True, "pid": pid}
        assert daemon.wait_gone(5)
    finally:
        daemon.kill()
        daemon.close()
        if stopper is not None:
            stopper.kill()
            stopper.communicate(timeout=10)


def pending_sigterm(pid: int) -> bool:
    text = Path(f"/proc/{pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in text.splitlines() if line.startswith("ShdPnd:")]
    return bool(masks and masks[0] & (1 << (signal.SIGTERM - 1)))


def test_beneath_an_agent_the_session_acts(real: Place, agent: AgentCli) -> None:
    agent.call(action="list")
    registered = agent.mbxctl("register", "shop-api", "--role", "api", "--json")
    assert registered.code == 0, registered
    assert registered.document["identity"]["holder"]["pid"] == agent.process.pid
    assert agent.call(action="list")["you"]["name"] == "shop-api"
    assert agent.mbxctl("list", "--json").document["you"]["name"] == "shop-api"
    row = real.run("list", "--json").document["identities"][0]
    assert (row["state"], row["holder"]["client"]) == ("live", "claude-code")
    taken = agent.mbxctl("register", "shop-web", "--role", "web", "--json")
    assert (taken.code, taken.document["error"]["code"]) == (4, "HOLDS_ANOTHER")
    assert agent.mbxctl("release").out == "released shop-api\n"
    assert agent.call(action="list")["you"] is None
    assert agent.mbxctl("claim", "shop-api").code == 0
    assert agent.call(action="list")["you"]["epoch"] == 2


def test_peoples_levers_are_refused_beneath_an_agent(real: Place, agent: AgentCli) -> None:
    agent.call(action="register", name="shop-api", role="api")
    for args in (
        ("free", "shop-api", "--reason", "r", "--yes"),
        ("free", "shop-api", "--reason", "r"),
        ("retire", "shop-api"),
        ("unretire", "shop-api"),
        ("rename", "shop-api", "shop-x"),
    ):
        result = agent.mbxctl(*args, "--json")
        assert (result.code, result.document["error"]["code"]) == (1, "NOT_ALLOWED"), args


def test_a_command_that_gave_up_does_nothing_later(real: Place, agent: AgentCli) -> None:
    """The daemon hangs, the command ends without an answer; when the daemon goes on, nobody asks for it any more."""
    epoch = agent.call(action="register", name="shop-backend", role="backend")["epoch"]
    pid = real.run("status", "--json").document["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        result = agent.mbxctl("release", "--json")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (result.code, result.document["error"]["code"]) == (5, "DAEMON_UNRESPONSIVE")
    assert agent.call(action="claim")["epoch"] == epoch
    assert [e["what"] for e in real.run("log", "--json").document["entries"]] == ["claimed", "registered"]


def test_free_fences_the_holder_and_tells_it(real: Place, agent: AgentCli) -> None:
    needs_a_person(real)
    agent.call(action="register", name="shop-api", role="api")
    refused = real.run("retire", "shop-api", "--json")
    freed = real.run("free", "shop-api", "--reason", "wrong agent", "--yes", "--json").document
    assert freed["identity"]["state"] == "vacant"
    assert freed["epoch"] == 2
    assert agent.call(action="list")["lost"]["name"] == "shop-api"
    entry = real.run("log", "shop-api", "--limit", "1", "--json").document["entries"][0]
    assert (entry["what"], entry["reason"]) == ("freed", "wrong agent")
    assert refused.code in {0, 4}


def test_watch_and_why_tell_of_a_death(real: Place, agent: AgentCli) -> None:
    agent.call(action="register", name="shop-api", role="api")
    why = real.run("why", "shop-api", "--json").document
    assert why["state"] == "live"
    assert {process["verdict"] for process in why["processes"]} == {"alive"}
    watcher = subprocess.Popen(
        [sys.executable, "-m", "mbxctl", "watch"],
        env={**real.env, "PYTHONUNBUFFERED": "1"},
        cwd=real.project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watcher.stderr is not None
        assert watcher.stdout is not None
        assert "watching" in watcher.stderr.readline()
        agent.kill()
        assert select.select([watcher.stdout], [], [], 20)[0]
        line = watcher.stdout.readline()
        assert "shop-api lost" in line
        assert "(holder-exited): vacant" in line
    finally:
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=20)
    assert watcher.returncode == 0
    assert real.run("show", "shop-api", "--json").document["identity"]["last_holder"]["reason"] == "holder-exited"


def mine(marker: str) -> list[str]:
    """Command lines of processes that carry this marker in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if marker.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
def test_the_tour_holds_and_leaves_nothing(place: Place) -> None:
    result = place.run("tour", "--json")
    assert result.code == 0, result
    document = result.document
    assert document["ok"] is True
    assert [step["step"] for step in document["steps"]] == [
        "start",
        "register",
        "crash",
        "claim",
        "restart",
        "cleanup",
    ]
    assert 0 < document["detection_ms"] < 2000
    assert not place.state.exists()
    assert not Path(document["place"]).exists()
    assert mine(f"HOME={place.home}") == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_tour_leaves_nothing(place: Place, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mbxctl", "tour"],
        env={**place.env, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "a daemon of its own runs" in process.stdout.readline()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert mine(f"HOME={place.home}") == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
def test_a_tour_that_fails_says_where_and_leaves_nothing(place: Place) -> None:
    broken = place.root / "broken" / "mbx_mcp"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("")
    (broken / "main.py").write_text("raise SystemExit('no shim today')")
    path = f"{broken.parent}:{place.env['PYTHONPATH']}"
    result = place.run("tour", "--json", PYTHONPATH=path)
    assert result.code == 1
    document = result.document
    assert document["ok"] is False
    assert [step["step"] for step in document["steps"]] == ["start"]
    assert document["error"]["code"] == "TOUR_FAILED"
    assert "agent-1: its shim ended without an answer: no shim today" in document["error"]["message"]
    assert mine(f"HOME={place.home}") == []
