"""What a daemon minted or was told in confidence is in the reply that it is for, and nowhere else.

The daemon logs everything that can be logged, every road on which a token travels is taken, rightly and wrongly, and
then every file, log, output and Git object is searched for every form of each secret.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mbxd.core import tokens
from tests.security.parties import mbxctl
from tests.support.daemon import PATIENCE, Client, Place, Refused, environment, image, wait_until
from tests.support.shim_process import ShimProcess, initialize, request
from tests.support.trees import Forest

LOUD = """
import logging, sys
from mbxd import logs
quiet = logs.setup
def loud():
    quiet()
    handler = logging.getLogger("mbxd").handlers[0]
    handler.filters.clear()
    logging.basicConfig(level=1, handlers=[handler])
    logging.getLogger("mbxd").setLevel(1)
    logging.getLogger("mbxd.core").debug("everything is logged")
logs.setup = loud
from mbxd.__main__ import main
sys.exit(main())
"""
AGENT: dict[str, Any] = {"project_key": "/tmp/shop", "program": "codex", "model": "five"}


class Heard:
    """What came back, by where; and the tokens that were in replies which are for them."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}
        self.tokens: set[str] = set()

    def reply(self, value: dict[str, Any]) -> dict[str, Any]:
        """A reply that may have its token; the rest of it may not."""
        rest = dict(value)
        token = rest.pop("registration_token", None)
        if token is not None:
            self.tokens.add(token)
        self.note("reply", rest)
        return value

    def note(self, what: str, value: Any) -> None:
        self.texts[f"{what} {len(self.texts)}"] = json.dumps(value).encode()

    def ask(self, client: Client, method: str, params: dict[str, Any], **meta: Any) -> None:
        """A call that must not tell, whether it works or not."""
        try:
            self.note(method, client.call(method, params, **meta))
        except Refused as refusal:
            self.note(method, {"message": str(refusal), **refusal.body})


def forms(token: str) -> list[bytes]:
    """The token and what it is made of: text, in small letters (a log may do that), raw, hexadecimal."""
    bare = token.removeprefix(tokens.PREFIX)
    raw = base64.urlsafe_b64decode(bare + "=")
    return [bare.encode(), bare.lower().encode(), raw, raw.hex().encode(), base64.b64encode(raw)]


def around(data: bytes, form: bytes) -> bytes:
    at = data.index(form)
    return data[max(at - 60, 0) : at + 80]


def key_forms(key: bytes) -> list[bytes]:
    return [key, key.hex().encode(), base64.b64encode(key), base64.urlsafe_b64encode(key), repr(key)[2:-1].encode()]


def abuse(heard: Heard, client: Client, token: str, name: str) -> None:
    """Send a token wherever it may go by mistake."""
    register = {**AGENT, "name": name}
    for params in (
        {**register, "registration_token": token + "x"},
        {**register, "registration_token": [token]},
        {**register, "registration_token": {"token": token}},
        {**register, "token": token},
        {**register, "registration_token": token, "format": token},
        {**register, "task_description": f"your token is {token}."},
        {**register, "model": token},
        {**AGENT, "name": token},
        {**AGENT, "name": f"use-{token}"},
        {**AGENT, "name": token, "registration_token": token},
    ):
        heard.ask(client, "agent.register", params)
        heard.ask(client, "tool.call", {"name": "register_agent", "arguments": params})
    for method, more in (
        ("agent.create", {**AGENT, "name_hint": token}),
        ("agent.whois", {"project_key": "/tmp/shop", "agent_name": token}),
        ("agent.retire", {"project_key": "/tmp/shop", "agent_name": token}),
        ("identity.claim", {"name": token}),
        ("identity.register", {"name": token, "role": "qa"}),
        ("identity.register", {"name": "shop-q", "role": "qa", "description": token}),
        ("identity.register", {"name": "shop-q", "role": token}),
        ("identity.why", {"name": token}),
        ("project.ensure", {"human_key": token}),
        ("mail.send", {"to": [token], "subject": "s", "body": "b"}),
        ("mail.read", {"ids": [token]}),
        ("events.subscribe", {"project": [token]}),
        (token, {}),
    ):
        heard.ask(client, method, more)
    heard.ask(client, "tool.call", {"name": token, "arguments": {}})


def through_a_shim(heard: Heard, place: Place, token: str, name: str) -> None:
    """As an agent's MCP client sends it, in every shape of result."""
    with ShimProcess(environment(place.state), cwd=place.root) as shim:
        shim.ask(initialize())

        def call(number: int, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            params = {"name": tool, "arguments": {**AGENT, **arguments}}
            result: dict[str, Any] = shim.ask(request("tools/call", params, number))["result"]
            return result

        for number, form in ((1, "json"), (2, "toon")):
            made = call(number, "create_agent_identity", {"format": form})["structuredContent"]
            heard.reply(made)
        for number, bad in ((3, token[:-2]), (4, [token])):
            heard.note("shim", call(number, "register_agent", {"name": name, "registration_token": bad}))
        heard.note("shim", call(5, "register_agent", {"name": name, "registration_token": token}))
        heard.note("shim", shim.ask(request("tools/list", {}, 6)))
        release = {"name": "mbx_identity", "arguments": {"action": "release"}}
        heard.note("shim", shim.ask(request("tools/call", release, 7)))  # else the test run is an agent from now on
        shim.close_input()
        assert shim.wait() == 0
        heard.texts["shim's stderr"] = shim.errors().encode()


def through_the_command_line(heard: Heard, place: Place, name: str) -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        done = mbxctl(place, *args)
        heard.texts[f"mbxctl {args} stderr"] = done.stderr.encode()
        return done

    heard.reply(json.loads(run("token", "show", name, "--json").stdout))
    rotated = run("token", "rotate", name)
    assert rotated.returncode == 0, rotated.stderr
    heard.tokens.add(rotated.stdout.strip())
    made = run("create", "--program", "p", "--model", "m", "--token").stdout
    heard.tokens.add(made.partition("token: ")[2].split()[0])
    for args in (
        ("list", "--all"),
        ("why", name),
        ("show", name),
        ("log",),
        ("log", "--json"),
        ("stats", "--json"),
        ("status", "--json"),
        ("doctor",),
        ("archive", "log"),
        ("archive", "verify", "--json"),
        ("whois", name, "--json"),
        ("create", "--program", "p", "--model", "m"),
    ):
        heard.texts[f"mbxctl {args}"] = run(*args).stdout.encode()


def git_objects(place: Place) -> bytes:
    """All that the archive ever had, unpacked."""
    return subprocess.run(
        ["git", "-C", str(place.state / "archive"), "cat-file", "--batch-all-objects", "--batch"],
        env={"PATH": os.defpath, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "HOME": "/"},
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    ).stdout


def dumped(place: Place) -> bytes:
    """The log as people read it offline."""
    done = subprocess.run(
        [sys.executable, "-m", "mbxd", "log", "dump"],
        env=environment(place.state),
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    inner = re.findall(rb'"((?:[A-Za-z0-9+/]{4}){4,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)"', done.stdout)
    return done.stdout + done.stderr + b"".join(map(base64.b64decode, inner))  # kept results


def test_every_road_of_a_token(place: Place, forest: Forest) -> None:
    script = place.root / "loud.py"
    script.write_text(LOUD)
    daemon = place.start((str(script),))
    heard = Heard()
    boss, worker = (speaker.client for speaker in forest.sessions(daemon, 2))
    watcher = daemon.person()
    watcher.call("events.subscribe")
    first = heard.reply(boss.call("agent.create", AGENT, request_id="r1"))
    assert heard.reply(boss.call("agent.create", AGENT, request_id="r1")) == first, "a retry gets it again"
    second = heard.reply(boss.call("agent.create", AGENT))
    heard.note("quiet", boss.call("agent.create", {**AGENT, "return_registration_token": False}))
    abuse(heard, worker, second["registration_token"], first["name"])
    heard.note(
        "taken",
        worker.call(
            "agent.register",
            {**AGENT, "name": second["name"], "registration_token": second["registration_token"]},
        ),
    )
    through_the_command_line(heard, place, second["address"])
    through_a_shim(heard, place, first["registration_token"], first["name"])
    person = daemon.person()
    wait_until("the archive has it", lambda: person.call("archive.status")["behind"] == 0)
    person.call("mail.backup", {"path": str(place.root / "backup.db")})
    watcher.call("ping")
    heard.note("events", list(watcher.notes))
    key = (place.state / "key").read_bytes()
    daemon.kill()  # what a crash leaves is looked at too
    again = place.start((str(script),))
    heard.reply(again.person().call("admin.token", {"name": first["address"], "rotate": False}))
    assert again.stop() == 0
    assert "level=debug logger=mbxd.core" in daemon.log(), "the daemon is as loud as it can be"

    files = {path: data for path, data in image(place.root).items() if path != "s/key"}
    everything = {**heard.texts, **files, "git": git_objects(place), "dump": dumped(place)}
    assert len(heard.tokens) >= 6
    assert all(token.startswith(tokens.PREFIX) for token in heard.tokens), heard.tokens
    assert any(name.startswith("daemon-") for name in files)
    assert b'"registration_token"' not in everything["dump"]
    assert b'{"id":1,"name":"' in everything["dump"], "kept results are looked into"
    for token in heard.tokens:
        for form in forms(token):
            assert {name: around(data, form) for name, data in everything.items() if form in data} == {}
    for form in key_forms(key):
        assert [name for name, data in everything.items() if form in data] == []


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """The check above would notice: a token in any of its forms is found."""
    token = tokens.mint(b"k" * tokens.KEY_BYTES, 1, 1)
    for form in forms(token):
        (tmp_path / "file").write_bytes(b"before " + form + b" after")
        assert form in image(tmp_path)["file"]
    assert token.removeprefix(tokens.PREFIX).encode() in forms(token)
