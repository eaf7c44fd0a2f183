"""The mail commands, the hook and the shim's resources against the real daemon, as a person and beneath an agent."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

from tests.e2e.test_mbxctl_e2e import AgentCli, agent, needs_a_person, real
from tests.mbxctl.conftest import Place, Result, place
from tests.support.shim_process import ShimProcess, initialize, request

__all__ = ["agent", "place", "real"]

EVIL = "x\x1b[2J\x07\x9b\u202ey"
LIMIT = 20.0


def error(result: Result) -> tuple[int, str]:
    return result.code, result.document["error"]["code"]


def send(place: Place, *to: str, subject: str = "Deploy", body: str = "Now, please.") -> str:
    done = place.run("send", *to, "--subject", subject, "--body", body, "--json")
    assert done.code == 0, done
    return str(done.document["id"])


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    assert select.select([stream], [], [], LIMIT)[0], "nothing came"
    return stream.readline()


def test_a_person_and_an_agent_write_to_each_other(real: Place, agent: AgentCli) -> None:
    needs_a_person(real)
    agent.call(action="register", name="shop-api", role="api")
    one = send(real, "shop-api", body="Now, please.\nBoth lines.")
    assert agent.mbxctl("whoami").out == "shop-api, role api, in shop, epoch 1, 1 unread\n"
    inbox = agent.mbxctl("inbox")
    assert inbox.out.splitlines()[1].split()[0] == one
    assert " owner " in inbox.out
    read = agent.mbxctl("read", one[:20])
    assert "from:     owner" in read.out
    assert "Now, please.\nBoth lines.\n" in read.out
    assert agent.mbxctl("whoami", "--json").document["unread"] == 1  # reading consumes nothing
    answer = agent.mbxctl("reply", one, "--body", "Which port?", "--needs-reply", "--json").document
    assert agent.mbxctl("ack", one[:20], "--note", "asked back").out == f"acked {one}\n"
    assert "nothing unread" in agent.mbxctl("inbox").err
    assert one in agent.mbxctl("inbox", "--all").out

    mine = real.run("inbox")
    assert "unread, wants a reply" in mine.out
    assert mine.out == real.run("inbox", "--owner").out
    assert real.run("whoami", "--json").document["owed"][0]["id"] == answer["id"]
    assert "shop-api (acked: asked back)" in real.run("sent").out
    thread = real.run("thread", one).out
    assert thread.index("Both lines.") < thread.index("Which port?")
    assert answer["id"] in real.run("search", "port").out
    assert real.run("reply", answer["id"], "--body", "8080").code == 0
    assert real.run("ack", answer["id"], "nonsense-id").code == 3
    assert "8080" in agent.mbxctl("read", agent.mbxctl("inbox", "--json").document["messages"][0]["id"]).out


def test_looking_into_a_mailbox_changes_nothing(real: Place, agent: AgentCli) -> None:
    needs_a_person(real)
    agent.call(action="register", name="shop-api", role="api")
    one = send(real, "shop-api")
    before = agent.mbxctl("inbox", "--json").document
    assert one in real.run("inbox", "--as", "shop-api").out
    assert "Now, please." in real.run("read", one, "--as", "shop-api").out
    assert agent.mbxctl("inbox", "--json").document == before
    for args in (("inbox", "--as", "shop-api"), ("inbox", "--owner"), ("read", one, "--as", "owner")):
        assert error(agent.mbxctl(*args, "--json")) == (1, "NOT_ALLOWED"), args
    for args in (("mail", "check"), ("mail", "backup", "x"), ("mail", "prune", "--older-than", "1d")):
        assert error(agent.mbxctl(*args, "--json")) == (1, "NOT_ALLOWED"), args
    assert error(real.run("inbox", "--as", "nobody-here", "--json")) == (3, "UNKNOWN_IDENTITY")


def test_long_bodies_keys_and_refusals(real: Place) -> None:
    needs_a_person(real)
    real.run("register", "shop-api", "--role", "api")
    body = "größe\n" * 20_000
    file = real.root / "body"
    file.write_text(body)
    head = ("send", "shop-api", "--subject", "long", "--body-file", str(file), "--key", "k")
    sent = real.run(*head)
    assert "(vacant)" in sent.out
    assert "Nobody reads shop-api now" in sent.err
    assert "before under this key" in real.run(*head).out
    (one,) = real.run("inbox", "--as", "shop-api", "--json").document["messages"]
    assert real.run("read", one["id"], "--as", "shop-api", "--json").document["messages"][0]["body"] == body
    assert error(real.run("send", "shop-apo", "--subject", "s", "--body", "b", "--json")) == (3, "UNKNOWN_IDENTITY")
    assert error(real.run("read", "0123456789", "--json"))[0] == 3
    assert error(real.run("send", "shop-api", "--subject", "s", "--body", "b", "--as", "shop-api", "--json")) == (
        1,
        "NOT_ALLOWED",
    )


def test_nothing_in_mail_steers_a_terminal(real: Place, agent: AgentCli) -> None:
    needs_a_person(real)
    agent.call(action="register", name="shop-api", role="api")
    sent = agent.mbxctl("send", "owner", "--subject", "a\u202eb", "--body", f"{EVIL}\n--- end ---", "--json").document
    for args in (("inbox",), ("read", sent["id"]), ("thread", sent["id"])):
        shown = on_terminal(real, *args)
        assert r"a\u202eb" in shown, args
        assert "\x1b[2J" not in shown, args
        assert real.run(*args, "--json").document["messages"][0]["subject"] == "a\u202eb"
    assert r"x\x1b[2J\x07\x9b\u202ey" in on_terminal(real, "read", sent["id"])
    assert real.run("read", sent["id"], "--json").document["messages"][0]["body"].startswith(EVIL)


def on_terminal(place: Place, *args: str) -> str:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "mbxctl", *args],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=place.project,
        env={**place.env, "TERM": "xterm-256color", "COLUMNS": "200"},
        start_new_session=True,
    ) as process:
        os.close(follower)
        shown = b""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and select.select([leader], [], [], LIMIT)[0]:
            try:
                shown += os.read(leader, 65536)
            except OSError:  # EIO: the last writer has gone
                break
        assert process.wait(LIMIT) == 0
    os.close(leader)
    return shown.decode()


@contextlib.contextmanager
def watching(place: Place, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`mbxctl inbox --watch --json`, ended by Ctrl-C."""
    with subprocess.Popen(
        [sys.executable, "-m", "mbxctl", "inbox", "--watch", "--json", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.project,
        env=place.env,
    ) as watch:
        try:
            yield watch
        finally:
            watch.send_signal(signal.SIGINT)
        assert watch.wait(LIMIT) == 0


def test_watch_hears_of_mail_as_it_comes(real: Place, agent: AgentCli) -> None:
    needs_a_person(real)
    agent.call(action="register", name="shop-api", role="api")
    agent.mbxctl("send", "owner", "--subject", "first", "--body", "b")
    with watching(real) as watch:
        assert json.loads(line_of(watch.stdout))["subject"] == "first"
        assert "watching for mail" in line_of(watch.stderr)
        agent.mbxctl("send", "shop-api", "--subject", "to itself", "--body", "b")
        agent.mbxctl("send", "owner", "--subject", "second", "--body", "b")
        came = json.loads(line_of(watch.stdout))
        assert (came["subject"], came["from"], came["to"]) == ("second", "shop-api", "owner")


def test_watch_follows_a_rename(real: Place) -> None:
    needs_a_person(real)
    for name, role in (("shop-api", "api"), ("shop-web", "web")):
        assert real.run("register", name, "--role", role).code == 0
    with watching(real, "--as", "SHOP-API") as watch:
        assert "watching for mail" in line_of(watch.stderr)
        for to in ("shop-web", "shop-api"):
            send(real, to, subject=f"before, to {to}")
        assert json.loads(line_of(watch.stdout))["subject"] == "before, to shop-api"
        assert real.run("rename", "shop-api", "shop-core").code == 0
        send(real, "shop-web", subject="after")
        for to in ("shop-core", "shop-api"):
            send(real, to, subject=f"after, to {to}")
            assert json.loads(line_of(watch.stdout))["subject"] == f"after, to {to}"


def test_care_of_the_mail_file(real: Place) -> None:
    needs_a_person(real)
    real.run("register", "shop-api", "--role", "api")
    send(real, "shop-api")
    assert real.run("mail", "check").out.startswith("ok: 1 message, 1 unread")
    copy = real.run("mail", "backup", "copy.db", "--json").document
    assert (real.project / "copy.db").stat().st_size == copy["bytes"]
    assert error(real.run("mail", "backup", "copy.db", "--json")) == (2, "PARAMETER_INVALID")
    dry = real.run("mail", "prune", "--older-than", "90d", "--dry-run", "--json").document
    assert dry == {"threads": 0, "messages": 0, "bytes": 0, "dry_run": True}


def test_the_hook_of_a_session(real: Place, agent: AgentCli) -> None:
    needs_a_person(real)
    assert "holds no mailbox" in agent.mbxctl("hook").out
    agent.call(action="register", name="shop-api", role="api")
    assert agent.mbxctl("hook").out == "mbx: you are shop-api (role api), nothing unread.\n"
    assert agent.mbxctl("hook", "--event", "prompt").out == ""
    send(real, "shop-api")
    assert (
        agent.mbxctl("hook", "--event", "prompt").out == "mbx: you are shop-api (role api), 1 unread: call mbx_inbox.\n"
    )
    assert real.run("free", "shop-api", "--reason", "test", "--yes").code == 0
    assert "no longer shop-api" in agent.mbxctl("hook", "--event", "prompt").out


def test_a_shim_tells_of_new_mail(real: Place) -> None:
    needs_a_person(real)

    def ask(method: str, **params: Any) -> Any:
        return shim.ask(request(method, params))["result"]

    with ShimProcess({**real.env, "PYTHONWARNINGS": "error"}, cwd=real.project) as shim:
        shim.ask(initialize(name="claude-code"))
        ask("tools/call", name="mbx_identity", arguments={"action": "register", "name": "shop-api", "role": "api"})
        for uri in ("mbx://inbox", "mbx://identities"):
            assert ask("resources/subscribe", uri=uri) == {}
        one = send(real, "shop-api")
        told = {shim.receive()["params"]["uri"] for _ in range(2)}
        assert told == {"mbx://inbox", "mbx://identities"}
        read = json.loads(ask("resources/read", uri="mbx://inbox")["contents"][0]["text"])
        assert read["messages"][0]["id"] == one
        listed = json.loads(ask("resources/read", uri="mbx://identities")["contents"][0]["text"])
        assert listed["you"]["unread"] == 1
