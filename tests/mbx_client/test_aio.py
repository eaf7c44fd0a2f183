"""The client for programs, on both event loops, against the stub in memory and on a socket."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mbx_client import aio, paths, testing
from mbx_client.blocking import ClientError
from tests.support.stub_daemon import StubDaemon, no_answer

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])


def run(loop: str, test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(20):
            await test()

    anyio.run(bounded, backend=loop)


@LOOPS
def test_hello_and_calls_in_memory(loop: str) -> None:
    def refuse(_params: dict[str, Any]) -> Any:
        raise ClientError("NAME_TAKEN", "taken", "another", {"state": "live"})

    async def test() -> None:
        answers = {"identity.list": lambda params: {"got": params}, "identity.register": refuse}
        async with testing.stub(answers) as stub:
            assert (await stub.client.hello(cwd="/w"))["protocol"] == 1
            assert await stub.client.call("identity.list", {"all": True}) == {"got": {"all": True}}
            with pytest.raises(ClientError) as caught:
                await stub.client.call("identity.register")
            assert caught.value.body()["data"] == {"state": "live"}
            with pytest.raises(ClientError, match="unknown method"):
                await stub.client.call("nonsense")
            assert [method for method, _ in stub.calls] == ["identity.list", "identity.register", "nonsense"]

    run(loop, test)


@LOOPS
def test_many_calls_at_once(loop: str) -> None:
    async def test() -> None:
        results: dict[int, Any] = {}
        async with testing.stub({"echo": lambda params: params["n"]}) as stub:

            async def ask(number: int) -> None:
                results[number] = await stub.client.call("echo", {"n": number})

            async with anyio.create_task_group() as group:
                for number in range(50):
                    group.start_soon(ask, number)
        assert results == {number: number for number in range(50)}

    run(loop, test)


@LOOPS
def test_changes_come_in_order_until_the_daemon_goes(loop: str) -> None:
    async def test() -> None:
        async with testing.stub() as stub, stub.client.subscribe("shop") as changes:
            assert stub.calls == [("events.subscribe", {"project": "shop"})]
            for seq in (1, 2):
                await stub.change({"seq": seq})
            assert [(await anext(changes))["seq"], (await anext(changes))["seq"]] == [1, 2]
            with pytest.raises(RuntimeError, match="second connection"):
                async with stub.client.subscribe():
                    pass
            await stub.hang_up()
            with pytest.raises(ClientError) as caught:
                await anext(changes)
            assert caught.value.code == "DAEMON_DOWN"

    run(loop, test)


@LOOPS
def test_a_slow_subscriber_is_told(loop: str) -> None:
    async def test() -> None:
        async with testing.stub() as stub, stub.client.subscribe() as changes:
            for seq in range(aio.QUEUE + 2):
                await stub.change({"seq": seq})
            await stub.client.call("ping")
            with pytest.raises(ClientError) as caught:
                while True:
                    await anext(changes)
            assert caught.value.code == "BUSY"

    run(loop, test)


@LOOPS
def test_over_a_socket(loop: str, daemon: StubDaemon, state: Path) -> None:
    where = paths.resolve({"MBX_STATE_DIR": str(state)})

    async def test() -> None:
        async with aio.connect(where, name="mine") as client:
            await client.hello()
            assert (await client.call("ping"))["pid"] == os.getpid()
            daemon.handle = no_answer
            with pytest.raises(ClientError) as caught:
                await client.call("ping", timeout=0.05)
            assert caught.value.code == "DAEMON_UNRESPONSIVE"
            async with anyio.create_task_group() as group:
                group.start_soon(unknown, client)
                await anyio.to_thread.run_sync(
                    lambda: daemon.wait_for(lambda: daemon.asked("identity.claim"), "the call")
                )
                daemon.hang_up()
            with pytest.raises(ClientError):
                await client.call("ping")

    async def unknown(client: aio.Client) -> None:
        with pytest.raises(ClientError) as caught:
            await client.call("identity.claim")
        assert caught.value.code == "OUTCOME_UNKNOWN"

    run(loop, test)
    assert daemon.asked("hello")[0]["params"]["client"]["name"] == "mine"


@LOOPS
def test_no_daemon_and_somebody_elses(loop: str, state: Path) -> None:
    where = paths.resolve({"MBX_STATE_DIR": str(state)})
    other = state.parent / "other"
    other.mkdir()
    (other / "mbxd.lock").touch()

    async def nobody() -> None:
        with pytest.raises(ClientError, match="no daemon"):
            async with aio.connect(where):
                pass

    async def stranger() -> None:
        async with aio.connect(where) as client:
            with pytest.raises(ClientError, match="another state directory"):
                await client.hello()

    run(loop, nobody)
    with StubDaemon(state) as daemon:
        daemon.lock_of = other
        run(loop, stranger)
