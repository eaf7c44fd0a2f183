"""The daemon's socket, as rude as clients get: the connection stays usable and the daemon lives."""

from __future__ import annotations

import json
import os
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbx_wire import document
from mbxd.server.limits import CONNECTIONS_SPARE, DESCRIPTORS_EACH
from mbxd.server.systemd import Notifier
from tests.support.daemon import Client, DaemonProcess, Place, stopped, wait_until
from tests.support.trees import Forest

MIB = 1024 * 1024
HELLO: dict[str, Any] = {
    "protocol": {"min": 1, "max": 1},
    "client": {"name": "mbx-mcp", "version": "0", "instance": "i"},
}


@pytest.fixture(scope="module")
def shared() -> Iterator[DaemonProcess]:
    """One daemon for the tests that change nothing in it."""
    with Place() as place:
        yield place.start()


@pytest.fixture(scope="module")
def shared_agent(shared: DaemonProcess) -> Iterator[Client]:
    with Forest() as forest:
        yield forest.session(shared).client


def ask(client: Client, line: bytes) -> dict[str, Any]:
    client.send_raw(line + b"\n")
    return client.receive()


def still_good(client: Client) -> None:
    assert client.call("ping")["pong"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"garbage", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"\xff"}', -32602),
        (b"[" * 100_000, -32700),
        (b'{"a":' * 100_000, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b"null", -32600),
        (b"12", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","meta":[]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","meta":{"epoch":"x"}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"no.such"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"internal.holder_died"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":NaN}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"identity.list"}', -32001),
        (b'{"jsonrpc":"2.0","id":1,"method":"events.subscribe"}', -32001),
        (b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{}}', -32602),
    ],
)
def test_bad_lines_get_the_standard_error(shared: DaemonProcess, line: bytes, code: int) -> None:
    client = shared.connect()
    assert ask(client, line)["error"]["code"] == code
    still_good(client)


@pytest.mark.parametrize("number", [0, -1, "", "0", 2**53 + 1, "a", None])
def test_ids_come_back_as_they_were(shared: DaemonProcess, number: Any) -> None:
    client = shared.connect()
    answer = ask(client, json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}).encode())
    assert answer["id"] == number
    assert type(answer["id"]) is type(number)


def test_empty_lines_crlf_and_notifications_are_no_requests(daemon: DaemonProcess) -> None:
    client = daemon.connect()
    client.send_raw(b"\n\r\n\n")
    for method in ("ping", "hello", "events.subscribe", "identity.claim", "no.such"):
        client.send_raw(json.dumps({"jsonrpc": "2.0", "method": method}).encode() + b"\r\n")
    still_good(client)


def test_a_line_that_is_too_long_is_discarded_to_its_end(daemon: DaemonProcess) -> None:
    client = daemon.connect()
    client.send_raw(b"x" * (5 * MIB))
    assert client.receive()["error"]["code"] == -32600, "at once, not at its end"
    client.send_raw(b"x" * (5 * MIB) + b"\n")
    still_good(client)
    big = {"jsonrpc": "2.0", "id": 5, "method": "ping", "params": {"x": "y" * (3 * MIB)}}
    assert ask(client, json.dumps(big).encode())["id"] == 5


def test_the_example_on_the_protocols_page(daemon: DaemonProcess) -> None:
    client = daemon.connect()
    (hello, welcome), *rest = document.EXAMPLE
    assert shape(ask(client, hello.encode())) == shape(json.loads(welcome))
    for request, reply in rest:
        assert ask(client, request.encode()) == json.loads(reply)


def shape(value: Any) -> Any:
    """Members without their values."""
    return {name: shape(inner) for name, inner in value.items()} if isinstance(value, dict) else type(value)


def test_the_frozen_methods_need_no_hello(daemon: DaemonProcess) -> None:
    client = daemon.connect()
    assert client.call("ping")["pid"] == daemon.pid
    status = client.call("status", {"of": "a newer client"})
    assert (status["pid"], status["socket"]) == (daemon.pid, daemon.socket_path)
    for low, high in ((99, 99), (0, 0), (5, 2)):
        bad = client.refused("hello", {**HELLO, "protocol": {"min": low, "max": high}})
        assert (bad.number, bad.code) == (-32002, "VERSION_SKEW")
        what = "Run: mbxctl restart" if low > 1 else "restart your agent CLI"
        assert what in bad.body["hint"]
        typed = {**HELLO, "client": {**HELLO["client"], "name": "mbxctl"}, "protocol": {"min": low, "max": high}}
        what = "Run: mbxctl restart" if low > 1 else "use the mbxctl of mbxd"
        assert what in client.refused("hello", typed).body["hint"]
    told = {**HELLO, "protocol": {"min": 99, "max": 99}, "client": {**HELLO["client"], "version": "9" * 100_000}}
    assert client.refused("hello", told).data["client"] == "9" * 40
    assert client.call("status")["connections"] == 1
    assert client.call("hello", {**HELLO, "protocol": {"min": 0, "max": 7}})["protocol"] == 1
    assert client.call("stop", {"reason": "test"})["stopping"]
    assert daemon.process.wait(10) == 0


def test_a_second_hello_changes_the_label_and_nothing_else(daemon: DaemonProcess, forest: Forest) -> None:
    speaker = forest.session(daemon)
    client = speaker.client
    client.hello(label="claude-code", agent="shop-a")
    assert client.call("identity.list")["pending"]["name"] == "shop-a"
    client.register("shop-a")
    assert client.row("shop-a")["holder"]["client"] == "claude-code"
    assert client.row("shop-a")["holder"]["pid"] == speaker.host.pid
    client.hello(label="another")
    assert client.claim()["epoch"] == 1


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("identity.claim", {"name": 5}, "PARAMETER_INVALID"),
        ("identity.claim", {"name": ["a"]}, "PARAMETER_INVALID"),
        ("identity.claim", {"who": "a"}, "PARAMETER_UNKNOWN"),
        ("identity.register", {"name": "ab"}, "ROLE_REQUIRED"),
        ("identity.register", {"role": "x"}, "NAME_REQUIRED"),
        ("identity.register", {"name": "../../etc", "role": "x"}, "NAME_INVALID"),
        ("identity.register", {"name": "ab\n", "role": "x"}, "NAME_INVALID"),
        ("identity.register", {"name": "ab\x00c", "role": "x"}, "NAME_INVALID"),
        ("identity.register", {"name": "админ", "role": "x"}, "NAME_INVALID"),
        ("identity.register", {"name": "everyone", "role": "x"}, "NAME_INVALID"),
        ("identity.register", {"name": "ab", "role": "X\x1b]52"}, "ROLE_INVALID"),
        ("identity.show", {}, "PARAMETER_MISSING"),
        ("identity.show", {"name": "nobody"}, "UNKNOWN_IDENTITY"),
        ("admin.log", {"limit": 0}, "PARAMETER_INVALID"),
        ("admin.log", {"limit": 10**30}, "PARAMETER_INVALID"),
        ("admin.free", {"name": "ab", "reason": "x"}, "UNKNOWN_IDENTITY"),
        ("tool.call", {}, "PARAMETER_MISSING"),
    ],
)
def test_bad_parameters_are_named(
    shared: DaemonProcess, shared_agent: Client, method: str, params: dict[str, Any], code: str
) -> None:
    client = shared.person() if method.startswith("admin") else shared_agent
    refusal = client.refused(method, params)
    assert refusal.code == code
    assert refusal.body["message"]
    still_good(client)
    assert client.rows() == {}


def test_an_absent_optional_parameter_may_be_null_empty_or_false(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    for absent in (None, "", False):
        assert client.refused("identity.claim", {"name": absent, "role": absent}).code == "NAME_REQUIRED"


def test_tools_refuse_in_their_own_way(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    unused = client.call("tool.call", {"name": "mbx_identity", "arguments": {"action": "list", "name": "a"}})
    assert unused["isError"]
    assert unused["structuredContent"]["error"]["code"] == "PARAMETER_UNUSED"
    assert json.loads(unused["content"][0]["text"]) == unused["structuredContent"]
    assert client.refused("tool.call", {"name": "no_such_tool"}).number == -32602
    made = client.call(
        "tool.call", {"name": "mbx_identity", "arguments": {"action": "register", "name": "shop-a", "role": "x"}}
    )
    assert not made["isError"]
    assert made["structuredContent"]["epoch"] == 1


def test_meta_has_bounds(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    for meta in ({"session": "s" * 201}, {"request_id": "r" * 129}):
        assert client.refused("identity.list", **meta).code == "PARAMETER_INVALID"
    assert client.refused("hello", {**HELLO, "cwd": "x" * 5000}).code == "PARAMETER_INVALID"
    assert client.refused("hello", {**HELLO, "client": {**HELLO["client"], "instance": ""}}).code == "PARAMETER_MISSING"


def test_a_client_that_shuts_down_its_side_gets_its_answers(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    number = client.send("identity.register", {"name": "shop-a", "role": "x"})
    last = client.send("admin.log", {})
    client.sock.shutdown(socket.SHUT_WR)
    answers = {answer["id"]: answer["result"] for answer in (client.receive(), client.receive())}
    assert answers[number]["epoch"] == 1
    assert "entries" in answers[last]
    with pytest.raises(ConnectionError):
        client.receive()


# --- fuzz ---------------------------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_method = st.sampled_from(
    [
        "hello",
        "ping",
        "status",
        "identity.list",
        "identity.claim",
        "identity.register",
        "identity.show",
        "tool.call",
        "identity.release",
        "identity.why",
        "admin.log",
        "admin.stats",
        "admin.free",
        "events.subscribe",
    ]
) | st.text(max_size=12)
_request = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": _method, "id": st.integers() | st.text(max_size=5) | _json},
    optional={"params": _json, "meta": _json},
).map(lambda value: json.dumps(value).encode())
_bytes = st.binary(max_size=200).map(lambda data: data.replace(b"\n", b" "))


def fuzz(client: Client, lines: list[bytes]) -> None:
    """Every line may be answered or not; the ping behind them must be, and nothing was an internal error."""
    client.send_raw(b"".join(line + b"\n" for line in lines))
    client.send_raw(b'{"jsonrpc":"2.0","id":"the last one","method":"ping"}\n')
    while True:
        message = client.receive()
        if message.get("id") == "the last one" and "result" in message:
            return
        if "error" in message:
            assert message["error"]["code"] != -32603, (lines, message)


@pytest.mark.parametrize("introduced", [False, True])
@pytest.mark.parametrize("examples", [60, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_nothing_that_arrives_breaks_it(place: Place, forest: Forest, introduced: bool, examples: int) -> None:
    daemon = place.start()
    client = forest.session(daemon).client if introduced else daemon.connect()

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    )
    @given(st.lists(_request | _bytes | _json.map(lambda value: json.dumps(value).encode()), max_size=6))
    def run(lines: list[bytes]) -> None:
        fuzz(client, lines)

    run()
    assert daemon.process.poll() is None
    assert "level=error" not in daemon.log()


# --- limits -------------------------------------------------------------------------------------------


def test_too_many_requests_in_flight_are_told(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    count = 2000
    line = b'{"jsonrpc":"2.0","id":%d,"method":"admin.log","params":{}}\n'
    client.send_raw(b"".join(line % at for at in range(count)))
    answers = [client.receive() for _ in range(count)]
    assert sorted(answer["id"] for answer in answers) == list(range(count))
    busy = [answer for answer in answers if "error" in answer]
    assert busy
    assert {answer["error"]["code"] for answer in busy} == {-32003}
    still_good(client)


def memory(pid: int) -> int:
    """Resident bytes."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_clients_that_never_read_cost_little_and_block_nobody(daemon: DaemonProcess, forest: Forest) -> None:
    good = forest.session(daemon).client
    for at in range(50):
        daemon.person().register(f"mailbox-with-a-long-name-{at}")
    before = memory(daemon.pid)
    silent = forest.sessions(daemon, 64)
    line = b'{"jsonrpc":"2.0","id":1,"method":"identity.list","params":{"all":true}}\n'
    for speaker in silent:
        speaker.client.sock.setblocking(False)
        for _ in range(20):
            try:
                speaker.client.sock.send(line * 500)
            except BlockingIOError:
                break
    assert len(good.rows()) == 50
    good.register("shop-a")
    assert memory(daemon.pid) - before < 64 * 4 * MIB
    for speaker in silent:
        speaker.client.close()
    wait_until("they are gone", lambda: good.call("status")["connections"] < 60)
    good.claim()


def test_a_slow_reader_gets_everything_once_it_reads(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    for at in range(50):
        daemon.person().register(f"mailbox-{at}")
    count = 400
    line = b'{"jsonrpc":"2.0","id":%d,"method":"identity.list","params":{"all":true}}\n'
    client.send_raw(b"".join(line % at for at in range(count)))
    other = daemon.person()
    assert len(other.rows()) == 50
    assert [client.receive()["id"] for _ in range(count)] == list(range(count))


def test_a_slow_subscriber_is_cut_off_and_told(daemon: DaemonProcess, forest: Forest) -> None:
    slow, busy, good = forest.sessions(daemon, 3)
    slow.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    assert slow.client.call("events.subscribe")["subscribed"]
    good.client.call("events.subscribe")
    busy.client.register("shop-a")
    seen = []
    for _ in range(1500):
        busy.client.release()
        busy.client.claim("shop-a")
        seen.append(good.client.note()["params"]["seq"])
        seen.append(good.client.note()["params"]["seq"])
    assert seen == sorted(seen)
    notes: list[dict[str, Any]] = []
    while not notes or notes[-1]["method"] != "events.dropped":
        notes.append(slow.client.note())
    assert notes[-1]["params"]["queued"] > 0
    assert len(notes) < 3000
    assert slow.client.call("ping")["pong"], "its requests are served on"
    assert slow.client.call("events.subscribe")["subscribed"], "and it may begin anew"


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))


def test_too_many_connections_are_told_and_it_recovers(place: Place, forest: Forest) -> None:
    daemon = place.start(prepare=few_descriptors)
    holder = forest.session(daemon)
    holder.client.register("shop-a")
    crowd = forest.sessions(daemon, 18)
    extra = [forest.ground().fork().connect(daemon.socket_path) for _ in range(30)]
    refused = []
    for client in extra:
        try:
            refused.append(client.receive(0.2)["error"]["code"])
        except TimeoutError:
            continue
    assert refused
    assert set(refused) == {-32003}
    assert holder.client.claim()["epoch"] == 1
    for speaker in crowd:
        assert speaker.client.row("shop-a")["state"] == "live"
    assert holder.client.call("identity.why", {"name": "shop-a"})["processes"][0]["means"] == "pidfd"
    for client in (*extra, *(speaker.client for speaker in crowd)):
        client.close()
    wait_until("there is room", lambda: holder.client.call("status")["connections"] == 1)
    assert daemon.person().row("shop-a")["state"] == "live"
    assert daemon.log().count("too many connections") <= 5


def test_a_burst_beyond_the_bound_is_refused_to_the_last_one(place: Place, forest: Forest) -> None:
    """A whole backlog is accepted before the first session of it runs: each must be counted at once."""
    daemon = place.start(prepare=few_descriptors)
    bound = (128 - CONNECTIONS_SPARE) // DESCRIPTORS_EACH
    holder = forest.session(daemon)
    holder.client.register("shop-a")
    with stopped(daemon.pid):
        crowd = [daemon.connect() for _ in range(3 * bound)]
        for client in crowd:
            client.send("ping")
    served, refused = 0, 0
    for client in crowd:
        message = client.receive()
        if "result" in message:
            assert message["result"]["pid"] == daemon.pid
            served += 1
        else:
            assert message["error"]["code"] == -32003
            refused += 1
    assert (served, refused) == (bound - 1, 2 * bound + 1), "the holder is one of them"
    assert holder.client.call("status")["connections"] == bound
    assert holder.client.claim()["epoch"] == 1
    for client in crowd:
        client.close()
    wait_until("there is room", lambda: holder.client.call("status")["connections"] == 1)
    assert daemon.person().row("shop-a")["state"] == "live"
    assert "can't accept" not in daemon.log()
    assert daemon.stop() == 0


def test_a_notice_to_the_manager_without_descriptors_is_dropped(tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                socket.socket(socket.AF_UNIX)
            notifier.send("WATCHDOG=1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with pytest.raises(BlockingIOError):
            manager.recv(64)
        notifier.send("WATCHDOG=1")
        assert manager.recv(64) == b"WATCHDOG=1"


def test_the_socket_is_private(place: Place) -> None:
    old = os.umask(0)
    try:
        daemon = place.start()
    finally:
        os.umask(old)
    run = os.path.dirname(daemon.socket_path)
    assert stat.S_IMODE(os.stat(daemon.socket_path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(run).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(place.state).st_mode) == 0o700
    for folder, _, names in os.walk(place.state):
        for name in names:
            assert not stat.S_IMODE(os.lstat(f"{folder}/{name}").st_mode) & 0o077, name


def test_looking_writes_nothing(daemon: DaemonProcess, forest: Forest) -> None:
    from tests.support.daemon import image

    def durable() -> dict[str, bytes]:
        """All but the archive's files: they follow the registry in their own time."""
        return {path: data for path, data in image(daemon.state).items() if not path.startswith("archive/")}

    def archived() -> str | None:
        status = person.call("archive.status")
        return str(status["head"]) if status["behind"] == 0 else None

    person = daemon.person()
    holder, other = forest.sessions(daemon, 2)
    holder.client.register("shop-a")
    registry = daemon.state / "registry"
    wait_until("the spare is made", lambda: max(os.listdir(registry)) == "next.spare")
    head = wait_until("the archive has it", archived)
    before = durable()
    for client in (holder.client, other.client, person):
        client.hello() if client is other.client else None
        for method, params in (
            ("identity.list", {"all": True}),
            ("identity.show", {"name": "shop-a"}),
            ("identity.why", {"name": "shop-a"}),
            ("admin.log", {}),
            ("admin.stats", {}),
            ("status", {}),
            ("ping", {}),
            ("events.subscribe", {}),
        ):
            client.call(method, params)
        client.call("tool.call", {"name": "mbx_identity", "arguments": {"action": "list"}})
    holder.client.refused("identity.register", {"name": "shop-b", "role": "x"})
    assert durable() == before
    assert archived() == head
