"""The threads that ask the mail store: what comes back, in which order, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from mbxd.runtime.readers import Closed, Readers

pytestmark = pytest.mark.trio
PATIENCE = 20.0


class Gate:
    """A question that is answered when the test says so."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()
        self.thread = ""

    def __call__(self) -> Gate:
        self.thread = str(threading.get_ident())
        self.entered.set()
        assert self.leave.wait(PATIENCE)
        return self


async def until(there: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not there():
            await trio.lowlevel.checkpoint()


async def test_answers_and_errors_come_back() -> None:
    readers = Readers(2)
    assert await readers.ask(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await readers.ask(lambda: 1 // 0)
    assert await readers.ask(threading.get_ident) != threading.get_ident()
    readers.close()


async def test_there_are_so_many_threads_at_most_and_questions_wait_in_order() -> None:
    readers, gates, answered = Readers(2), [Gate() for _ in range(5)], []

    async def ask(gate: Gate) -> None:
        answered.append(await readers.ask(gate))

    async with trio.open_nursery() as nursery:
        for gate in gates:
            nursery.start_soon(ask, gate)
            if gate in gates[:2]:
                await until(gate.entered.is_set)
            else:
                await trio.testing.wait_all_tasks_blocked()
        for place, gate in enumerate(gates):
            await until(gate.entered.is_set)
            assert [one.entered.is_set() for one in gates[place + 2 :]] == [False] * len(gates[place + 2 :])
            gate.leave.set()
            await until(lambda gate=gate: gate in answered)  # type: ignore[misc]
    assert answered == gates
    assert len({gate.thread for gate in gates}) == 2
    readers.close()


async def test_one_who_is_cancelled_waits_for_the_answer() -> None:
    readers, gate = Readers(1), Gate()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.ask, gate)
            await until(gate.entered.is_set)
            scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                gate.leave.set()
    assert gate.leave.is_set()
    assert await readers.ask(lambda: "fine") == "fine"
    with trio.move_on_after(0) as scope:
        await readers.ask(lambda: pytest.fail("it was cancelled before"))
    assert scope.cancelled_caught
    readers.close()


async def test_the_end_comes_after_what_was_asked() -> None:
    readers, gate, answered = Readers(1), Gate(), []
    before = threading.active_count()

    async def ask(act: Callable[[], object]) -> None:
        answered.append(await readers.ask(act))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, gate)
        await until(gate.entered.is_set)
        nursery.start_soon(ask, lambda: "second")
        await trio.testing.wait_all_tasks_blocked()
        readers.close()
        readers.close()
        with pytest.raises(Closed):
            await readers.ask(lambda: "late")
        gate.leave.set()
    assert answered in ([gate, "second"], ["second", gate])
    await until(lambda: threading.active_count() <= before)
