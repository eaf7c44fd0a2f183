"""The shim as a process, against a stub daemon: answers, signals, ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.shim_process import (
    COMMAND,
    ShimProcess,
    call,
    environment,
    initialize,
    modern,
    request,
)
from tests.support.stub_daemon import HangUp, Message, StubDaemon, no_answer, refused, reply


def test_answers_the_opening_without_a_daemon_and_creates_nothing(state: Path) -> None:
    (state / "stopped").unlink()
    with ShimProcess(environment(state)) as shim:
        assert shim.ask(initialize())["result"]["protocolVersion"] == "2025-11-25"
        shim.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert shim.ask(request("ping"))["result"] == {}
        assert [tool["name"] for tool in shim.ask(request("tools/list"))["result"]["tools"]]
        shim.close_input()
        assert shim.wait() == 0
    assert list(state.iterdir()) == []


def test_call_reaches_the_daemon_and_comes_back(daemon: StubDaemon, state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize(name="claude-code"))
        answer = shim.ask(call({"action": "list", "name": "größe \U0001f642"}, request_id="x"))
    assert answer["id"] == "x"
    assert answer["result"]["structuredContent"]["echo"] == {"action": "list", "name": "größe \U0001f642"}
    hello = daemon.asked("hello")[0]["params"]
    assert hello["client"]["name"] == "mbx-mcp"
    assert hello["client"]["label"] == "claude-code"
    assert hello["protocol"] == {"min": 1, "max": 1}
    assert daemon.asked("tool.call")[0]["meta"] == {"request_id": "c1"}


def test_connects_after_the_first_answer_without_a_call(daemon: StubDaemon, state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        daemon.wait_for(lambda: daemon.asked("hello"), "hello")


def test_handles_come_from_meta_in_their_order(daemon: StubDaemon, state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.ask(call(meta={"threadId": "t", "mbx/session": "m"}))
        shim.ask(call(meta={"ai.opencode/sessionID": "o", "mbx/session": "m"}))
        shim.ask(call(meta={"mbx/session": "m"}))
        shim.ask(call(meta={"threadId": "", "mbx/session": None}))
        daemon.hang_up()
        shim.ask(call())
    sessions = [sent["meta"].get("session") for sent in daemon.asked("tool.call")]
    assert sessions == ["t", "o", "m", None, None]
    assert daemon.asked("hello")[-1]["params"]["hints"]["sessions"] == ["t", "o", "m", ""]


@pytest.mark.parametrize(
    ("label", "resume"),
    [("claude-code", ["claude-code:s1"]), ("copilot-cli", ["copilot-cli:s2"]), ("codex-mcp-client", [])],
)
def test_environment_session_ids_count_only_for_their_client(
    daemon: StubDaemon, state: Path, label: str, resume: list[str]
) -> None:
    env = environment(state, CLAUDE_CODE_SESSION_ID="s1", COPILOT_AGENT_SESSION_ID="s2", MBX_AGENT="shop-backend")
    with ShimProcess(env) as shim:
        shim.ask(initialize(name=label))
        daemon.wait_for(lambda: daemon.asked("hello"), "hello")
    hints = daemon.asked("hello")[0]["params"]["hints"]
    assert hints["resume"] == resume
    assert hints["agent"] == "shop-backend"


def test_agent_option_and_project_are_told(daemon: StubDaemon, state: Path, tmp_path: Path) -> None:
    repo = tmp_path / "Shop Front"
    (repo / ".git").mkdir(parents=True)
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    with ShimProcess(environment(state), "--agent", "wish", cwd=repo) as shim:
        shim.ask(initialize())
        daemon.wait_for(lambda: daemon.asked("hello"), "hello")
    hello = daemon.asked("hello")[0]["params"]
    assert hello["project"] == {"key": str(repo), "slug": "shop-front"}
    assert hello["cwd"] == str(repo)
    assert hello["hints"]["agent"] == "wish"


def test_a_bad_project_file_is_told_until_it_is_mended(daemon: StubDaemon, state: Path, tmp_path: Path) -> None:
    """Whatever an agent claimed meanwhile would be in another project; the session stays attached all the same."""
    here = tmp_path / "shop"
    here.mkdir()
    file = here / ".mbx.toml"
    file.write_text('# ours\nproject = "Shop"\n')
    with ShimProcess(environment(state), cwd=here) as shim:
        shim.ask(initialize())
        daemon.wait_for(lambda: daemon.asked("hello"), "hello")
        for _ in range(2):
            error = shim.ask(call())["result"]["structuredContent"]["error"]
            assert error["code"] == "PARAMETER_INVALID"
            assert error["message"].startswith(f"{file}, line 2: project must be ")
        assert daemon.asked("tool.call") == []
        file.write_text('# ours\nproject = "shop"\n')
        assert not shim.ask(call())["result"]["isError"]
    asked = [one for one in daemon.requests if one["method"] in {"hello", "tool.call"}]
    assert [one["method"] for one in asked] == ["hello", "hello", "tool.call"], "the project is told before the call"
    assert [one["params"]["project"] for one in asked[:2]] == [None, {"key": "shop", "slug": "shop"}]


def test_a_new_client_name_is_told_to_the_daemon(daemon: StubDaemon, state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize(name="first"))
        daemon.wait_for(lambda: daemon.asked("hello"), "hello")
        shim.ask(call())
        shim.ask(initialize(name="second"))
        daemon.wait_for(lambda: len(daemon.asked("hello")) == 2, "second hello")
    labels = [hello["params"]["client"]["label"] for hello in daemon.asked("hello")]
    assert labels == ["first", "second"]


def test_refusals_of_the_daemon_become_results(daemon: StubDaemon, state: Path) -> None:
    daemon.handle = lambda sent: refused(sent, "BUSY") if sent["method"] == "tool.call" else None
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        result = shim.ask(call())["result"]
    assert result["isError"] is True
    assert result["structuredContent"]["error"]["code"] == "BUSY"
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


def test_daemon_that_restarts_in_a_call_gets_the_same_request_again(daemon: StubDaemon, state: Path) -> None:
    def lose_the_first_reply(_sent: Message) -> None:
        if daemon.accepted == 1:
            raise HangUp

    daemon.before_reply = lose_the_first_reply
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        answer = shim.ask(call({"action": "claim"}))
    assert answer["result"]["structuredContent"]["echo"] == {"action": "claim"}
    assert list(daemon.executed.values()) == [1]
    calls = daemon.asked("tool.call")
    assert [sent["meta"]["request_id"] for sent in calls] == ["c1", "c1"]
    instances = {hello["params"]["client"]["instance"] for hello in daemon.asked("hello")}
    assert len(instances) == 1


def test_a_call_that_kills_every_daemon_is_not_sent_for_ever(daemon: StubDaemon, state: Path) -> None:
    def hang_up(sent: Message) -> Message | None:
        if sent["method"] == "tool.call":
            raise HangUp
        return None

    daemon.handle = hang_up
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        error = shim.ask(call())["result"]["structuredContent"]["error"]
        assert error["code"] == "OUTCOME_UNKNOWN"
        assert len(daemon.asked("tool.call")) == 3
        assert shim.ask(request("ping"))["result"] == {}


def test_without_a_daemon_calls_are_refused_and_later_ones_recover(state: Path) -> None:
    daemon = StubDaemon(state)
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        began = time.monotonic()
        error = shim.ask(call())["result"]["structuredContent"]["error"]
        assert error["code"] == "DAEMON_DOWN"
        assert "mbxctl start" in error["hint"]
        assert time.monotonic() - began < 8
        with daemon:
            assert shim.ask(call(request_id=2))["result"]["isError"] is False


def test_a_call_waits_for_a_daemon_that_is_on_its_way(state: Path) -> None:
    daemon = StubDaemon(state)
    lock = state / "run"
    lock.mkdir()
    os.symlink("/proc/self/fd/0", lock / "mbxd.sock")  # neither absent nor a socket: no start, only waiting
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.send(call())
        with daemon:
            assert shim.receive()["result"]["isError"] is False


def test_a_hung_daemon_is_named(daemon: StubDaemon, state: Path) -> None:
    daemon.handle = no_answer
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        error = shim.ask(call())["result"]["structuredContent"]["error"]
        assert error["code"] == "DAEMON_UNRESPONSIVE"
        assert shim.ask(request("ping"))["result"] == {}


@pytest.mark.slow
def test_a_daemon_that_hangs_in_a_call_is_named(daemon: StubDaemon, state: Path) -> None:
    daemon.handle = lambda sent: None if sent["method"] == "hello" else {}
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        error = shim.ask(call())["result"]["structuredContent"]["error"]
    assert error["code"] == "DAEMON_UNRESPONSIVE"
    assert f"pid {os.getpid()}" in error["message"]
    assert daemon.asked("ping")


@pytest.mark.slow
def test_a_daemon_of_another_state_directory_is_not_used(state: Path) -> None:
    other = state.parent / "other"
    other.mkdir()
    (other / "mbxd.lock").touch()
    with StubDaemon(state) as daemon:
        daemon.lock_of = other
        with ShimProcess(environment(state)) as shim:
            shim.ask(initialize())
            error = shim.ask(call())["result"]["structuredContent"]["error"]
        assert error["code"] == "DAEMON_DOWN"
        assert "another state directory" in error["message"]
        assert daemon.asked("tool.call") == []


def test_fifty_parallel_calls_are_each_answered(daemon: StubDaemon, state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.send(*[call({"action": "list", "name": f"n{i}"}, request_id=i) for i in range(50)])
        answers = [shim.receive() for _ in range(50)]
    assert {a["id"]: a["result"]["structuredContent"]["echo"]["name"] for a in answers} == {
        i: f"n{i}" for i in range(50)
    }


def test_a_cancelled_call_is_not_answered(daemon: StubDaemon, state: Path) -> None:
    daemon.handle = lambda sent: {} if sent["method"] == "tool.call" else None
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.send(call(request_id="gone"))
        daemon.wait_for(lambda: daemon.asked("tool.call"), "the call")
        shim.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "gone"}})
        daemon.handle = lambda _sent: None
        assert shim.ask(call(request_id="next"))["id"] == "next"
        shim.close_input()
        assert shim.rest() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_at_once_whatever_the_daemon_does(
    daemon: StubDaemon, state: Path, number: signal.Signals
) -> None:
    daemon.handle = lambda sent: None if sent["method"] == "hello" else {}
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.send(call())
        daemon.wait_for(lambda: daemon.asked("tool.call"), "the call")
        began = time.monotonic()
        shim.process.send_signal(number)
        assert shim.wait() == 128 + number
        assert time.monotonic() - began < 1.0  # 0.1 s on a machine that does nothing else


def test_a_signal_ends_it_while_nobody_reads_its_output(state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.send(*[request("tools/list", request_id=i) for i in range(100)])
        shim.process.send_signal(signal.SIGTERM)
        assert shim.wait() == 128 + signal.SIGTERM


def test_the_end_of_input_waits_for_accepted_calls(daemon: StubDaemon, state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.send(initialize(), *[call(request_id=i) for i in range(1, 6)])
        shim.close_input()
        assert sorted(message["id"] for message in shim.rest()) == [0, 1, 2, 3, 4, 5]
        assert shim.wait() == 0


def test_the_end_of_input_does_not_wait_for_a_hung_daemon(daemon: StubDaemon, state: Path) -> None:
    daemon.handle = no_answer
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.send(call())
        began = time.monotonic()
        shim.close_input()
        assert [message["result"]["isError"] for message in shim.rest()] == [True]
        assert shim.wait() == 0
        assert time.monotonic() - began < 4


def test_a_last_line_without_its_newline_counts(state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.send_raw(json.dumps(request("ping")).encode())
        shim.close_input()
        assert shim.rest() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_a_reader_that_is_gone_ends_it(state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        assert shim.process.stdout is not None
        shim.process.stdout.close()
        shim.send(request("ping"))
        assert shim.wait() == 0


def test_closed_standard_descriptors_end_it_quietly(state: Path) -> None:
    script = f"exec {' '.join(COMMAND)} <&- >&-"
    done = subprocess.run(
        ["/bin/sh", "-c", script], env=environment(state), timeout=20, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_death_of_its_host_ends_it_although_input_stays_open(daemon: StubDaemon, state: Path) -> None:
    # The host is a Python program that is no wrapper; the test keeps the write end of the shim's input.
    read_end, write_end = os.pipe()
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    host = subprocess.Popen(
        [sys.executable, "-c", code, *COMMAND],
        env=environment(state),
        stdin=read_end,
        stdout=subprocess.PIPE,
    )
    try:
        os.close(read_end)
        os.write(write_end, json.dumps(initialize()).encode() + b"\n")
        assert host.stdout is not None
        assert host.stdout.readline()
        daemon.wait_for(lambda: daemon.asked("hello"), "hello")
        # An answered ping: the loop went round after it has found its host.
        os.write(write_end, json.dumps(request("ping")).encode() + b"\n")
        assert host.stdout.readline()
        host.kill()
        assert host.stdout.read() == b""  # the shim held the pipe's last write end
        assert os.fstat(write_end).st_mode
    finally:
        host.kill()
        host.wait(20)
        os.close(write_end)
        if host.stdout is not None:
            host.stdout.close()


def test_bad_input_of_every_kind_leaves_it_serving(state: Path) -> None:
    lines: list[bytes] = [
        b"garbage",
        b"",
        b"   ",
        b'{"jsonrpc":"2.0","id":1,"meth',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
        b"\xef\xbb\xbf" + json.dumps(request("ping")).encode(),
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}',
        b"null",
        b"42",
        b"[]",
        b"[1,2]",
        b'"text"',
        b'{"jsonrpc":"2.0","id":1,"method":5}',
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b'{"id":1,"method":"ping"}',
        b"x" * (5 * 1024 * 1024),
        b'{"jsonrpc":"2.0","id":"' + b"y" * 70_000 + b'","method":"ping"}',
    ]
    with ShimProcess(environment(state)) as shim:
        answers = []
        for line in lines:
            shim.send_raw(line + b"\n")
            if line.strip():
                answers.append(shim.receive())
        assert shim.ask(request("ping", request_id="last")) == {"jsonrpc": "2.0", "id": "last", "result": {}}
        shim.send_raw(json.dumps(request("ping", request_id="crlf")).encode() + b"\r\n")
        assert shim.receive()["id"] == "crlf"
    assert all("error" in answer for answer in answers[:-1])
    assert len(answers[-1]["id"]) == 70_000
    assert "error" not in answers[-1]


def test_speaks_utf8_in_the_c_locale(daemon: StubDaemon, state: Path) -> None:
    env = environment(state, LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    with ShimProcess(env) as shim:
        shim.ask(initialize())
        line = json.dumps(call({"action": "list", "name": "日本語 \U0001f98a"}), ensure_ascii=False)
        shim.send_raw(line.encode() + b"\n")
        assert shim.receive()["result"]["structuredContent"]["echo"]["name"] == "日本語 \U0001f98a"


def test_half_a_surrogate_pair_is_refused_and_echoed(daemon: StubDaemon, state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.send_raw(b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/call","params":{"name":"mbx_identity",')
        shim.send_raw(b'"arguments":{"action":"\\ud800"}}}\n')
        answer = shim.receive()
    assert answer["result"]["isError"] is True
    assert answer["result"]["structuredContent"]["error"]["code"] == "TEXT_INVALID"
    assert answer["id"] == "\ud800"


def test_half_a_surrogate_pair_in_a_name_does_not_shut_the_daemon_out(daemon: StubDaemon, state: Path) -> None:
    with ShimProcess(environment(state, MBX_AGENT="shop-\udcff")) as shim:
        shim.ask(initialize(name="a\ud800b"))
        assert shim.ask(call())["result"]["isError"] is False
    (hello, *_) = daemon.asked("hello")
    assert hello["params"]["client"]["label"] == "a?b"
    assert hello["params"]["hints"]["agent"] == "shop-?"


def test_a_subscription_is_answered_at_the_end(state: Path) -> None:
    with ShimProcess(environment(state)) as shim:
        wanted = {"toolsListChanged": True, "promptsListChanged": True}
        shim.send(modern("subscriptions/listen", {"notifications": wanted}, request_id="sub"))
        assert shim.receive()["params"]["notifications"] == {"toolsListChanged": True}
        shim.close_input()
        (last,) = shim.rest()
    assert last["id"] == "sub"
    assert last["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "sub"


def test_only_the_standard_library_is_loaded(daemon: StubDaemon, state: Path) -> None:
    code = (
        "import sys, os, mbx_mcp.main as m\n"
        "leave = os._exit\n"
        "def tell(status):\n"
        "    sys.stderr.write(' '.join(sorted(sys.modules)))\n"
        "    sys.stderr.flush()\n"
        "    leave(status)\n"
        "m.os._exit = tell\n"
        "sys.argv = ['mbx-mcp']\n"
        "m.main()\n"
    )
    lines = [initialize(), call()]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(state),
        input=b"".join(json.dumps(line).encode() + b"\n" for line in lines),
        capture_output=True,
        timeout=20,
        check=False,
    )
    loaded = {name.partition(".")[0] for name in done.stderr.decode().split()}
    heavy = {
        "msgspec",
        "trio",
        "anyio",
        "psutil",
        "watchfiles",
        "click",
        "rich",
        "asyncio",
        "subprocess",
        "logging",
    }
    assert done.stdout.count(b"\n") == 2
    assert not loaded & (heavy | {"argparse", "pathlib", "dataclasses", "inspect", "threading"})


@pytest.mark.parametrize(
    ("arguments", "status"), [(["--help"], 0), (["--version"], 0), (["--nonsense"], 2), (["--agent"], 2)]
)
def test_command_line(state: Path, arguments: list[str], status: int) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=environment(state),
        capture_output=True,
        timeout=20,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == status
    assert bool(done.stdout) == (status == 0)
    assert bool(done.stderr) == (status == 2)


def test_resources_are_read_and_watched(daemon: StubDaemon, state: Path) -> None:
    you = {"name": "shop-api", "address": "shop-api", "project": "shop"}

    def handle(sent: Message) -> Message | None:
        if sent["method"] == "events.subscribe":
            return reply(sent, {"subscribed": True, "seq": 1})
        if sent["method"] == "identity.list":
            return reply(sent, {"you": you, "project": {"id": 1, "key": "shop", "slug": "shop"}})
        return None

    daemon.handle = handle
    mail = {"jsonrpc": "2.0", "method": "events.mail", "params": {"to": "shop-api", "project": "shop"}}
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        read = shim.ask(request("resources/read", {"uri": "mbx://inbox"}))["result"]["contents"][0]
        assert json.loads(read["text"])["echo"] == {}
        assert daemon.asked("tool.call")[0]["params"]["name"] == "mbx_inbox"
        assert daemon.asked("events.subscribe") == []
        assert shim.ask(request("resources/subscribe", {"uri": "mbx://inbox"}))["result"] == {}
        daemon.wait_for(lambda: daemon.asked("events.subscribe"), "the subscription")
        daemon.notify(mail)
        for _ in range(2):
            # The first is of the mailbox that it turned out to be, or of the mail; what is left follows a second later.
            assert shim.receive()["params"] == {"uri": "mbx://inbox"}
            daemon.notify(mail)
        daemon.hang_up()
        daemon.wait_for(lambda: len(daemon.asked("events.subscribe")) == 2, "the second subscription")
        assert shim.receive()["params"] == {"uri": "mbx://inbox"}
        shim.ask(request("resources/unsubscribe", {"uri": "mbx://inbox"}))
        daemon.wait_for(lambda: len(daemon.asked("events.subscribe")) == 3, "its end")
    assert [sent["params"] for sent in daemon.asked("events.subscribe")] == [{}, {}, {"project": ""}]


def test_a_read_starts_no_daemon(state: Path) -> None:
    (state / "stopped").unlink()
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        error = shim.ask(request("resources/read", {"uri": "mbx://inbox"}))["error"]
    assert error["data"]["code"] == "DAEMON_DOWN"
    assert list(state.iterdir()) == []


@pytest.mark.slow
def test_a_wait_for_mail_shows_progress(daemon: StubDaemon, state: Path) -> None:
    answer: list[Message] = []

    def handle(sent: Message) -> Message | None:
        if sent["method"] == "tool.call":
            answer.append(reply(sent, daemon.tool(sent)))
            return {}
        return None

    daemon.handle = handle
    params = {"name": "mbx_inbox", "arguments": {"wait_s": 45}, "_meta": {"progressToken": "p"}}
    with ShimProcess(environment(state)) as shim:
        shim.ask(initialize())
        shim.send(request("tools/call", params, "waits"))
        told = [shim.receive()["params"] for _ in range(2)]
        daemon.notify(answer[0])
        assert shim.receive()["id"] == "waits"
    assert [(each["progressToken"], each["progress"], each["total"]) for each in told] == [
        ("p", 5, 45),
        ("p", 10, 45),
    ]
