"""The agents and people of a world: their processes, what they ask, and how the answers are taken."""

from __future__ import annotations

import contextlib
import signal
import time
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.daemon import Place, Refused
from tests.support.trees import Forest
from tests.torture import plan, reading
from tests.torture.bodies import Body, Shim, Talk
from tests.torture.daemons import Broken, Daemons, pause
from tests.torture.history import Fault, History, Op
from tests.torture.model import EXCUSED, GRANTS
from tests.torture.voices import UNKNOWN, Answer, Call, Lost, RawVoice

GRACE = 1
"""Seconds of detach_grace in these worlds."""
ANSWERED_WITHIN = 20.0
"""Seconds after which a request without an answer is a failure, when nothing is stopped."""
PAGE = 200
ADDRESSES = (*plan.NAMES, *(name.lower() for name in plan.AGENTS))


class Society:
    """Everybody. Use as a context manager; every process ends with it."""

    def __init__(self, seed: int, builds: tuple[Path, Path]) -> None:
        self.history = History(GRACE)
        self._builds = builds
        self._stack = contextlib.ExitStack()
        self._counter = 0
        self._talks: dict[str, Talk] = {}
        self._by_pid: dict[int, Body] = {}
        self._tokens: dict[str, str] = {}
        self._lives = [0] * plan.CAST
        self._cast = plan.cast(seed)
        self._bodies: dict[int, Body] = {}
        """The newest life of each of the cast that had something to do so far."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(Place())
            place.config(f"[liveness]\ndetach_grace_s = {GRACE}\n")
            self.daemons = Daemons(place, self._builds)
            stack.callback(self.daemons.close)
            self._forest = stack.enter_context(Forest())
            self._ground = self._forest.ground()
            stack.callback(self._close_bodies)
            self.daemons.up()
            self._state = place.state
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:  # who is impatient waits until nothing is left
            self._stack.__exit__(kind, error, trace)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    # -- requests --------------------------------------------------------------------------------------------

    def _act(
        self,
        talk: Talk,
        what: str,
        method: str,
        params: dict[str, Any],
        *,
        wait: bool = True,
        pick: int = 0,
        up: bool = True,
        shim: Shim | None = None,
        repeats: Call | None = None,
        **said: Any,
    ) -> Op | None:
        """Ask. Returns the operation when it was answered; None when it was passed over, is open or lost."""
        body = self._body(talk)
        living = body.living()
        if not living:
            return None
        if talk.op is not None:
            self._settle(talk, 0.0 if not wait else ANSWERED_WITHIN)
            if talk.op is not None:
                return None
        shim = shim or living[pick % len(living)]
        if not shim.alive or (shim.stopped and isinstance(shim.voice, RawVoice)):
            return None
        if isinstance(shim.voice, RawVoice):
            if up:
                self._up()
            elif not shim.voice.connected:
                return None
        elif pick % 2 and up:
            self._up()
        self._counter += 1
        call = repeats or Call(method, params, talk.handle, f"r{self._counter}", self._stale_epoch(what, said))
        op = Op(talk.session, body.id, shim.id, what, time.monotonic(), handle=talk.handle, **said)
        if what == "send":
            op.name = talk.name
        talk.op, talk.call, talk.shim, talk.again = op, call, shim, pick % 3 != 0
        self.history.ops.append(op)
        try:
            shim.voice.send(call)
        except Lost:
            self._lost(shim)
        if wait and not shim.stopped:
            self._settle(talk)
        return op if op.answered else None

    @staticmethod
    def _stale_epoch(what: str, said: dict[str, Any]) -> int | None:
        return said["epoch"] if what == "stale" else None

    def _settle(self, talk: Talk, limit: float = ANSWERED_WITHIN) -> None:
        """Wait for the answer of what this conversation asked."""
        until = time.monotonic() + limit
        while talk.op is not None and talk.shim is not None:
            if talk.shim.stopped:
                return
            self._collect(talk.shim, min(limit, 0.2))
            if time.monotonic() > until:
                break
            if limit and not self.daemons.pid:
                self._up()
        if limit and talk.op is not None:
            raise Broken(f"no answer: {talk.op}\n{self.daemons.logs()[-2000:]}")

    def _settle_all(self) -> bool:
        """Wait for all answers; whether there are none to come."""
        for talk in list(self._talks.values()):
            if talk.op is not None:
                self._settle(talk)
        return all(talk.op is None for talk in self._talks.values())

    def _sweep(self) -> None:
        """Take the answers that have come, so that `done` is not much later than the truth."""
        for talk in list(self._talks.values()):
            if talk.op is not None and talk.shim is not None:
                self._collect(talk.shim, 0.0)

    def _collect(self, shim: Shim, limit: float) -> None:
        """Take what one shim has got."""
        try:
            answer = shim.voice.receive(limit)
        except Lost:
            self._lost(shim)
            return
        if answer is None:
            return
        for talk in self._talks.values():
            if talk.shim is shim and talk.call is not None and talk.call.id == answer.id:
                self._answered(talk, answer)
                return

    def _lost(self, shim: Shim) -> None:
        """A connection is gone: what was under way is asked again under its id, or given up."""
        for talk in [one for one in self._talks.values() if one.shim is shim and one.op is not None]:
            body = self._body(talk)
            able = shim.alive and not shim.stopped and body.alive and not self.daemons.paused
            if not able or not talk.again or talk.call is None or not isinstance(shim.voice, RawVoice):
                self._give_up(talk)
                continue
            for _ in range(5):
                try:
                    self._up()
                    shim.voice.send(talk.call)
                    break
                except Lost:
                    continue
            else:
                self._give_up(talk)

    def _give_up(self, talk: Talk) -> None:
        if talk.op is not None:
            talk.op.lost = time.monotonic()
            if talk.op.what == "send" and talk.call is not None:
                talk.owed = {"from": talk.op.name, "params": talk.call.params}
        talk.op = talk.call = talk.shim = None

    def _answered(self, talk: Talk, answer: Answer) -> None:
        op, call, shim = talk.op, talk.call, talk.shim
        assert op is not None
        assert call is not None
        assert shim is not None
        if answer.code in UNKNOWN:
            self._give_up(talk)
            return
        talk.op = talk.call = talk.shim = None
        op.done = time.monotonic()
        op.ok, op.code = not answer.code, answer.code
        op.body = answer.body
        if not op.ok:
            op.name = op.name or reading.name_in(answer.body)
            op.holder = self._holder(reading.refused_for(answer.body))
            return
        changed = reading.fill(op, answer.body, self._holder, ADDRESSES)
        if op.what == "create":
            self._tokens[op.name] = answer.body["registration_token"]
        match op.what:
            case "claim" | "register" | "resume" | "create" | "take" if op.bound:
                changed = (talk.name, talk.epoch) != (op.name, op.epoch)
                talk.mail = talk.mail if talk.name == op.name else {}
                talk.name, talk.epoch = op.name, op.epoch
            case "release":
                talk.name, talk.epoch = "", 0
            case "inbox":
                talk.mail = reading.ids(answer.body)
            case "ack":
                for token in op.tokens:
                    talk.mail.pop(token, None)
        if changed and op.what in {*GRANTS, "release", "send", "ack"} - {"take"}:
            talk.last = (call, op, shim, answer.body)

    def _holder(self, holder: tuple[int, str] | None) -> str:
        """The session that a process and a handle stand for."""
        if holder is None:
            return ""
        pid, handle = holder
        body = self._by_pid.get(pid)
        if body is None:
            return f"pid {pid}"
        return f"{body.id}/{handle}" if handle else body.id

    # -- people ----------------------------------------------------------------------------------------------

    def _ask(self, method: str, params: dict[str, Any], *, refused: set[str] | None = None) -> Any:
        """What a person's command gets; None when it is refused with one of these codes."""
        until = time.monotonic() + ANSWERED_WITHIN
        while time.monotonic() < until:
            self._up()
            try:
                with self.daemons.connect() as person:
                    return person.call(method, params)
            except OSError:
                pause(0.02)  # a daemon that has just killed itself is not seen to be dead at once
            except Refused as refusal:
                if refusal.code in {*(refused or ()), *(EXCUSED if refused else ())}:
                    return None
                raise Broken(f"{method}: {refusal.code} {refusal}") from refusal
        raise Broken(f"{method} was never answered")

    def _peek(self, name: str, what: str) -> None:
        op = Op("person", "person", "", what, time.monotonic(), name=name)
        found: list[str] = []
        before: dict[str, str] = {}
        while True:
            params = {"name": name, "all": what == "everything", "limit": PAGE, **before}
            page = self._ask("mail.peek", params, refused={"UNKNOWN_IDENTITY"})
            if page is None:
                return
            found += [one["subject"] for one in page["messages"]]
            if page["before"] is None:
                break
            before = {"before": page["before"]}
        op.done, op.ok, op.tokens = time.monotonic(), True, tuple(found)
        self.history.ops.append(op)

    def _check_epochs(self, name: str) -> None:
        """The log of an identity: each grant under an epoch of its own, rising."""
        page = self._ask("admin.log", {"name": name, "limit": 1000}, refused={"UNKNOWN_IDENTITY"})
        epochs = [entry["epoch"] for entry in (page or {"entries": []})["entries"] if entry["what"] == "claimed"]
        if epochs != sorted(set(epochs), reverse=True):
            raise Broken(f"the log has these epochs of {name}: {epochs}")

    # -- pieces ----------------------------------------------------------------------------------------------

    def _close_bodies(self) -> None:
        for body in self._bodies.values():
            body.close()

    def _of(self, who: int) -> Body:
        """The newest life of one of the cast; the first begins with the first question for it."""
        return self._bodies.get(who) or self._born(who)

    def _born(self, who: int) -> Body:
        self._lives[who] += 1
        name = f"{who}.{self._lives[who]}"
        body = Body(self._forest, self._ground, self.daemons, self._cast[who], name, self._state)
        self._bodies[who] = body
        self._by_pid.update(dict.fromkeys(body.pids, body))
        self._talks.update({talk.session: talk for talk in body.talks})
        return body

    def _kill(self, body: Body, ghost: str = "") -> None:
        """kill -9 of an agent. ghost: what its orphaned shim still asks for."""
        self.history.faults.append(Fault("host", body.id, time.monotonic()))
        body.kill()
        for talk in body.talks:
            if talk.op is not None and talk.shim is not None:
                self._collect(talk.shim, 0.05)
            self._give_up(talk)
        if ghost and body.agent.shape != "orphan":
            # One that says hello only now is nobody's child any more, and its own host for as long as it lasts.
            self._by_pid.update({shim.pid: body for shim in body.shims})
            talk = body.talks[0]
            self._act(talk, "claim", "identity.claim", {"name": ghost}, name=ghost, wait=False)
            if talk.shim is not None:
                self._collect(talk.shim, 1.0)
            self._give_up(talk)
        body.close()
        for talk in body.talks:
            del self._talks[talk.session]

    def _up(self) -> None:
        """A daemon runs, and whoever had a connection has one again."""
        births = self.daemons.births
        self.daemons.up()
        if self.daemons.births == births:
            return
        for body in self._bodies.values():
            for shim in body.living():
                if not shim.stopped and isinstance(shim.voice, RawVoice) and shim.voice.used:
                    with contextlib.suppress(Lost):
                        shim.voice.connect()

    def _body(self, talk: Talk) -> Body:
        name = talk.session.partition("/")[0]
        return next(body for body in self._bodies.values() if body.id == name)

    def did(self) -> str:
        """How much happened, in words."""
        answered = sum(op.answered for op in self.history.ops)
        lost = sum(op.lost < inf for op in self.history.ops)
        daemons = f"{self.daemons.births} daemons ({self.daemons.adopted} started by shims)"
        return f"{answered} answers, {lost} lost, {len(self.history.faults)} ends of processes, {daemons}"
