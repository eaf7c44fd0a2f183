"""What happens, drawn from a seed: the cast of agents and the steps. Pure.

A step names its actors by number and means something in every situation (else it is passed over), so that any
part of a plan is a plan.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as numbers

NAMES = ("shop-a", "shop-b", "shop-c", "shop-d", "shop-e", "shop-f")
AGENTS = ("GreenCastle", "BlueLake")
"""Names of agents, made with a token that hands them over."""
CAST = 6
SHAPES = ("direct", "sh", "sh-exec", "npx", "uvx", "timeout", "orphan")
"""How an agent starts its shim: itself, beneath a shell or a launcher that stays or gives way, by a double fork."""
STAYING = ("sh", "npx", "uvx", "timeout")
"""Shapes in which something stands between the agent and its shim."""

ACTS = {
    "claim": 26,
    "register": 5,
    "resume": 6,  # claim without a name
    "release": 7,
    "create": 3,  # an agent identity, bound to its maker for the time being
    "take": 6,  # register_agent, half the time with its token
    "send": 28,
    "ack": 14,
    "inbox": 9,
    "read": 3,
    "list": 10,
    "agree": 8,  # list, and claim what it shows
    "repeat": 7,  # the last answered request, once more
    "stale": 4,  # an act under an older epoch
    "burst": 16,  # everybody at once
}
FAULTS = {
    "free": 1,
    "look": 3,
    "start": 7,
    "kill": 4,
    "kill-shim": 4,
    "kill-wrapper": 1,
    "add-shim": 4,
    "stop": 2,
    "go": 4,
    "cut": 3,
    "wait": 1,
    "daemon-kill": 3,
    "daemon-stop": 1,
    "daemon-pause": 1,
    "daemon-upgrade": 1,
    "daemon-fault": 2,
    "clock": 2,
    "disk-full": 1,
    "disk-room": 2,
}
WEIGHTS = {**ACTS, **FAULTS}


@dataclass(frozen=True, slots=True)
class Agent:
    """One of the cast. real: its shim is mbx-mcp, else a process whose connection the harness speaks on.

    talks: conversations of its process; handle_key: the `_meta` value that tells them apart. resumes: its next life
    goes on with the same conversations.
    """

    shape: str
    real: bool
    talks: int
    handle_key: str
    resumes: bool


@dataclass(frozen=True, slots=True)
class Step:
    """at: its number; who: of the cast; talk: which conversation; pick: a number for whatever else is to be chosen.

    wait: the answer is waited for; else it may come whenever it comes.
    """

    at: int
    what: str
    who: int
    talk: int
    name: str
    pick: int
    wait: bool

    def burst(self, talks: list[int]) -> Iterator[Step]:
        """An act of everybody, none of which is waited for. talks: how many conversations each of the cast has."""
        rng = random.Random(f"burst {self.pick}")
        for who, count in enumerate(talks):
            for talk in range(count):
                what = rng.choice(("claim", "claim", "send", "send", "ack", "inbox", "list", "release"))
                name = self.name if rng.random() < 0.5 else rng.choice(NAMES)
                yield replace(self, what=what, who=who, talk=talk, name=name, pick=rng.randrange(1000), wait=False)

    def __str__(self) -> str:
        actor = "" if self.what.startswith(("daemon", "disk", "clock", "burst")) else f" agent {self.who}.{self.talk}"
        named = f" {self.name}" if self.what in {"claim", "register", "send", "agree", "free"} else ""
        return f"{self.at:4} {self.what}{actor}{named} ({self.pick}{'' if self.wait else ', unwaited'})"


def cast(seed: int) -> list[Agent]:
    """Half of them with a real shim."""
    rng = random.Random(f"cast {seed}")
    agents = []
    for number in range(CAST):
        talks = rng.choice((1, 1, 2))
        shape = rng.choice(SHAPES)
        agents.append(Agent(shape, number % 2 == 0, talks, rng.choice(("threadId", "mbx/session")), rng.random() < 0.5))
    return agents


def steps(seed: int) -> Iterator[Step]:
    """The plan without an end: the first n steps are the same however many are asked for."""
    rng = random.Random(f"steps {seed}")
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    for at in numbers():
        [what] = rng.choices(kinds, weights)
        step = Step(
            at,
            what,
            who=rng.randrange(CAST),
            talk=rng.randrange(3),
            name=rng.choice(NAMES),
            pick=rng.randrange(1000),
            wait=rng.random() < 0.65,
        )
        # It begins with mailboxes that exist, most of them held.
        yield replace(step, what="register", who=at, talk=0, name=NAMES[at], wait=True) if at < len(NAMES) else step
