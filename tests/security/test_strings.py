"""Whatever a string parameter holds: a clear refusal or a harmless result, and nothing written elsewhere."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mbx_wire.methods import METHODS
from mbx_wire.tools import TOOLS
from tests.security import parties, strings
from tests.support.daemon import Client, DaemonProcess, Place, environment, image, wait_until
from tests.support.shim_process import ShimProcess, initialize, request
from tests.support.trees import Forest

ESCAPED = Path("/tmp/mbx-escaped")
INTERNAL = -32603


@pytest.fixture(scope="module")
def there() -> Iterator[Place]:
    with Place() as place:
        yield place


@pytest.fixture(scope="module")
def target(there: Place) -> DaemonProcess:
    daemon = there.start()
    daemon.person().register("shop-a")
    return daemon


@pytest.fixture(scope="module")
def agent(target: DaemonProcess) -> Iterator[Client]:
    with Forest() as forest:
        client = forest.session(target).client
        client.register("shop-x")
        yield client


def request_of(slot: strings.Slot, value: Any) -> tuple[str, Any]:
    """Method and params with a value at that place."""
    params = strings.put(strings.sample(strings.schema_of(slot.method)), slot.path, value)
    if slot.method.startswith("tool:"):
        return "tool.call", {"name": slot.method.removeprefix("tool:"), "arguments": params}
    return slot.method, params


def judge(answer: dict[str, Any], what: str) -> None:
    """A result, or a refusal in words that may be shown on a terminal."""
    error = answer.get("error")
    if error is None:
        structured = answer["result"].get("structuredContent") if isinstance(answer["result"], dict) else None
        error = structured.get("error") if isinstance(structured, dict) else None
        if error is None:
            return
    else:
        assert error["code"] != INTERNAL, (what, answer)
        error = error.get("data") or error
    assert error["message"], what
    for text in (error["message"], error.get("hint", "")):
        bad = [char for char in text if steers(char)]
        assert not bad, (what, bad, text[:300])
        assert len(text) < 2_000, (what, len(text))


def steers(char: str) -> bool:
    """Whether a character moves a cursor, turns the direction or can't be seen."""
    return unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Co"}


SLOTS = strings.all_slots()


def test_every_string_parameter_is_found() -> None:
    found = {slot.method for slot in SLOTS}
    assert len(SLOTS) > 100
    assert ("mail.send", ("to", 0)) in SLOTS
    assert ("hello", ("hints", "resume", 0)) in SLOTS
    names = {*METHODS, *(f"tool:{name}" for name in TOOLS)}
    assert names - found == {name for name in names if not list(strings.slots(strings.schema_of(name)))} | {
        "stop",
        "mail.backup",
    }


@pytest.mark.parametrize("method", sorted({slot.method for slot in SLOTS}))
def test_over_the_socket(target: DaemonProcess, agent: Client, method: str) -> None:
    person = target.person()
    for slot in SLOTS:
        if slot.method != method:
            continue
        for what, value in strings.NASTY.items():
            name, params = request_of(slot, value)
            client = person if name in METHODS and METHODS[name].people else agent
            judge_next(client, name, params, f"{slot} {what}")
    assert agent.call("ping")["pong"]
    person.close()


def test_as_an_agents_calls(target: DaemonProcess, there: Place) -> None:
    """The same through a shim, which has parsers of its own; every third string at every place."""
    with ShimProcess(environment(there.state), cwd=there.root) as shim:
        shim.ask(initialize())
        number = 0
        tools = [slot for slot in SLOTS if slot.method.startswith("tool:")]
        for at, slot in enumerate(tools):
            for what in list(strings.NASTY)[at % 3 :: 3]:
                number += 1
                _, call = request_of(slot, strings.NASTY[what])
                answer = shim.ask(request("tools/call", call, number))
                assert answer["id"] == number
                judge(answer, f"{slot} {what}")
        for raw in strings.SURROGATES:
            number += 1
            head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"mbx_identity",' % number
            shim.send_raw(head + b'"arguments":{"action":"claim","name":' + raw + b"}}}\n")
            assert "error" in json.dumps(shim.receive())
        assert shim.ask(request("ping", {}, 0))["result"] == {}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_as_names_of_parameters(target: DaemonProcess, agent: Client, method: str) -> None:
    for what, value in strings.NASTY.items():
        if method != "stop":
            judge_next(agent, method, {value: value}, what)
        judge_next(agent, "tool.call", {"name": "mbx_identity", "arguments": {"action": "list", value: value}}, what)
    assert agent.call("ping")["pong"]


def judge_next(client: Client, method: str, params: Any, what: str, **meta: Any) -> None:
    """Ask, and judge the answer; events on the way are nobody's business."""
    number = client.send(method, params, **meta)
    answer = client.receive()
    while "method" in answer:
        answer = client.receive()
    assert answer["id"] == number
    judge(answer, f"{method} {what}")


def test_in_the_envelope(target: DaemonProcess, agent: Client) -> None:
    for what, value in strings.NASTY.items():
        judge_next(agent, value, {}, what)
        judge_next(agent, "tool.call", {"name": value}, what)
        judge_next(agent, "identity.list", {}, what, session=value)
        judge_next(agent, "project.ensure", {"human_key": "/tmp/shop"}, what, request_id=value)
        line = {"jsonrpc": "2.0", "id": value[:1000], "method": "ping"}
        agent.send_raw(json.dumps(line).encode() + b"\n")
        assert agent.receive()["id"] == value[:1000]


def test_halves_of_characters(target: DaemonProcess, agent: Client) -> None:
    for slot in SLOTS:
        name, params = request_of(slot, "MARK")
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": name, "params": params, "meta": {}}).encode()
        for raw in strings.SURROGATES:
            agent.send_raw(line.replace(b'"MARK"', raw) + b"\n")
            answer = agent.receive()
            while "method" in answer:
                answer = agent.receive()
            judge(answer, f"{slot} {raw!r}")
    for member in (b'"method":%s', b'"id":%s,"method":"ping"', b'"method":"ping","id":1,"meta":{"session":%s}'):
        for raw in strings.SURROGATES:
            agent.send_raw(b'{"jsonrpc":"2.0","id":1,' + member.replace(b"%s", raw) + b"}\n")
            assert "jsonrpc" in agent.receive()
    assert agent.call("ping")["pong"]


def test_what_came_of_it(target: DaemonProcess, there: Place) -> None:
    """After all of the above: nothing elsewhere, clean logs, names that are paths of nothing, a log that replays."""
    person = target.person()
    assert not ESCAPED.exists()
    wait_until("the archive has it", lambda: person.call("archive.status")["behind"] == 0)
    assert person.call("archive.verify")["ok"] is True
    assert {path.name for path in there.root.iterdir()} <= {"s", "home", target.log_path.name}
    archive = there.state / "archive"
    for path in archive.rglob("*"):
        assert path.resolve().is_relative_to(archive)
        assert not [char for char in path.name if steers(char)]
    log = target.log()
    assert "level=error" not in log
    assert "Traceback" not in log
    for line in log.splitlines():
        assert line.startswith("time=")
        assert line.isprintable()
    for args in (("list", "--all"), ("log",), ("stats",), ("doctor",), ("archive", "log")):
        done = parties.mbxctl(there, *args)
        for text in (done.stdout, done.stderr):
            bad = {char for char in text if steers(char)} - {"\n"}
            assert not bad, (args, bad)
    rows = person.rows()
    before = image(there.state / "registry")
    assert before
    target.kill()
    assert there.start().person().rows().keys() == rows.keys()
