"""Real `mbx-mcp` processes beneath real agents, through crashes of the daemon and of the agents."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.daemon import Place, environment, wait_until
from tests.support.hosts import PYTHON
from tests.support.shim_process import ShimProcess, call, initialize

_AGENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(child.pid))
child.wait()
"""


class AgentShim(ShimProcess):
    """An agent whose child is a shim; its stdin and stdout are the shim's."""

    def __init__(self, place: Place, name: str) -> None:
        script, self.pid_file = place.root / "agentcli", place.root / f"{name}.pid"
        script.write_text(_AGENT)
        # An interpreter that is given the agent's program before the shim's command line.
        launcher = place.root / f"{name}.sh"
        launcher.write_text(
            f'#!/bin/sh\nexec {shlex.join([*PYTHON, str(script), str(self.pid_file), PYTHON[0]])} "$@"\n'
        )
        launcher.chmod(0o700)
        super().__init__(environment(place.state), executable=str(launcher))
        self.name = name
        self.numbers = 0

    def __enter__(self) -> Self:
        self.ask(initialize(name="test-agent"))
        return self

    @property
    def shim_pid(self) -> int:
        return int(wait_until("the shim has a pid", lambda: self.pid_file.exists() and self.pid_file.read_text()))

    def tool(self, **arguments: Any) -> Any:
        self.numbers += 1
        return self.ask(call(arguments, self.numbers))["result"]["structuredContent"]


@pytest.fixture
def agents(place: Place) -> Iterator[list[AgentShim]]:
    with ExitStack() as stack:
        yield [stack.enter_context(AgentShim(place, f"agent-{at}")) for at in range(8)]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_everyone_keeps_name_and_epoch_over_kills_of_the_daemon(place: Place, agents: list[AgentShim]) -> None:
    daemon = place.start()
    epochs = {agent: agent.tool(action="register", name=agent.name, role="test")["epoch"] for agent in agents}
    for _ in range(2):
        daemon.kill()
        daemon = place.start()
        for agent in agents:
            you = agent.tool(action="list")["you"]
            assert (you["name"], you["epoch"]) == (agent.name, epochs[agent])
            assert agent.tool(action="claim")["epoch"] == epochs[agent]
    assert {daemon.person().row(agent.name)["state"] for agent in agents} == {"live"}


def test_a_killed_agent_frees_its_name_and_its_shim_ends(place: Place, agents: list[AgentShim]) -> None:
    daemon = place.start()
    person = daemon.person()
    victim, heir = agents[:2]
    victim.tool(action="register", name="shop-a", role="test")
    shim = victim.shim_pid
    assert person.row("shop-a")["holder"]["pid"] == victim.process.pid
    victim.process.kill()  # its stdin stays open: the test has the other end
    wait_until("it is vacant", lambda: person.row("shop-a")["state"] == "vacant")
    claimed = heir.tool(action="claim", name="shop-a")
    assert claimed["epoch"] == 2
    assert claimed["predecessor"]["reason"] == "holder-exited"
    wait_until("the orphaned shim ends", lambda: gone(shim))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_killed_shim_detaches_and_the_name_waits(place: Place, agents: list[AgentShim], number: int) -> None:
    """The agent lives on: the name is its session's for the grace."""
    daemon = place.start()
    person = daemon.person()
    agents[0].tool(action="register", name="shop-a", role="test")
    # The agent of these tests ends with its shim, so it is stopped: it lives and does nothing.
    os.kill(agents[0].process.pid, signal.SIGSTOP)
    os.kill(agents[0].shim_pid, number)
    wait_until("it is detached", lambda: person.row("shop-a")["state"] == "detached")
    refusal = agents[1].tool(action="claim", name="shop-a")["error"]
    assert refusal["code"] == "IDENTITY_IN_USE"
    assert refusal["data"]["claimable_in_s"] > 0
    os.kill(agents[0].process.pid, signal.SIGCONT)
    wait_until("its agent ended too", lambda: person.row("shop-a")["state"] == "vacant")


def test_starting_and_listing_writes_nothing(place: Place, agents: list[AgentShim]) -> None:
    daemon = place.start()
    for agent in agents:
        agent.tool(action="list")
    assert daemon.person().call("status")["journal_seq"] == 0
    assert daemon.person().rows() == {}
