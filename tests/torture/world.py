"""Carries out a plan with real processes, and records what was asked and what came of it."""

from __future__ import annotations

import contextlib
import signal
import time
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.daemon import PROJECT, Place, Refused
from tests.support.trees import Forest
from tests.torture import plan, reading
from tests.torture.bodies import Body, Shim, Talk
from tests.torture.daemons import Broken, Daemons, pause
from tests.torture.history import Fault, History, Op
from tests.torture.model import EXCUSED, GRANTS, SETTLE, judge
from tests.torture.plan import Step
from tests.torture.voices import UNKNOWN, Answer, Call, Lost, RawVoice

GRACE = 1
"""Seconds of detach_grace in these worlds."""
ANSWERED_WITHIN = 20.0
"""Seconds after which a request without an answer is a failure, when nothing is stopped."""
JUDGE_EVERY = 25
CLOCKS = (0.0, -5.0, 5.0, -3600.0, 3600.0, -90_000.0, 90_000.0, -1.6e9)
PAGE = 200
PROFILE = {"project_key": PROJECT["key"], "program": "agentcli", "model": "m"}
ADDRESSES = (*plan.NAMES, *(name.lower() for name in plan.AGENTS))

__all__ = ["Broken", "World"]


class World:
    """One seed's world. Use as a context manager; every process of it ends with it."""

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

    # -- the plan --------------------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        """One step. Raises Broken."""
        getattr(self, "_do_" + step.what.replace("-", "_"))(step)
        self._sweep()
        if step.at % JUDGE_EVERY == JUDGE_EVERY - 1:
            self.judge()

    def finish(self) -> None:
        """Let everything come to rest, look at all of it, and stop the daemon in order."""
        for body in self._bodies.values():
            body.go()
        self.daemons.make_room()
        self._up()
        self._settle_all()
        pause(SETTLE / 10)
        for talk in list(self._talks.values()):
            body = self._body(talk)
            if body.alive and body.living():
                self._act(talk, "list", "identity.list", {"all": True})
                self._act(talk, "inbox", "mail.inbox", {"limit": PAGE})
        for name in ADDRESSES:
            self._peek(name, "peek")
            self._peek(name, "everything")
            self._check_epochs(name)
        checked = self._ask("mail.check", {})
        if not checked["ok"]:
            raise Broken(f"mail.check: {checked['problems']}")
        self.judge()
        self.daemons.end(signal.SIGTERM)
        self.daemons.check_log()

    def did(self) -> str:
        """How much happened, in words."""
        answered = sum(op.answered for op in self.history.ops)
        lost = sum(op.lost < inf for op in self.history.ops)
        daemons = f"{self.daemons.births} daemons ({self.daemons.adopted} started by shims)"
        return f"{answered} answers, {lost} lost, {len(self.history.faults)} ends of processes, {daemons}"

    def judge(self) -> None:
        """Raises Broken when the history can't be explained."""
        found = list(dict.fromkeys(judge(self.history)))
        if found:
            raise Broken("\n".join(found[:10]))

    # -- what agents do --------------------------------------------------------------------------------------

    def _do_claim(self, step: Step) -> None:
        self._plain(step, "claim", "identity.claim", {"name": step.name}, name=step.name)

    def _do_resume(self, step: Step) -> None:
        self._plain(step, "resume", "identity.claim", {})

    def _do_register(self, step: Step) -> None:
        self._plain(step, "register", "identity.register", {"name": step.name, "role": "crew"}, name=step.name)

    def _do_create(self, step: Step) -> None:
        name = plan.AGENTS[step.pick % len(plan.AGENTS)]
        self._plain(step, "create", "agent.create", {**PROFILE, "name_hint": name}, name=name.lower())

    def _do_take(self, step: Step) -> None:
        name = plan.AGENTS[step.pick // 2 % len(plan.AGENTS)]
        token = self._tokens.get(name.lower()) if step.pick % 2 else None
        params = {**PROFILE, "name": name} if token is None else {**PROFILE, "name": name, "registration_token": token}
        self._plain(step, "take", "agent.register", params, name=name.lower(), shown=token is not None)

    def _do_release(self, step: Step) -> None:
        self._plain(step, "release", "identity.release", {})

    def _do_list(self, step: Step) -> None:
        self._plain(step, "list", "identity.list", {"all": True})

    def _do_inbox(self, step: Step) -> None:
        self._plain(step, "inbox", "mail.inbox", {"limit": PAGE})

    def _do_read(self, step: Step) -> None:
        talk = self._talk(step)
        if talk is not None and talk.mail:
            self._plain(step, "read", "mail.read", {"ids": list(talk.mail.values())[:20]})

    def _do_ack(self, step: Step) -> None:
        talk = self._talk(step)
        if talk is not None and not talk.mail:
            self._act(talk, "inbox", "mail.inbox", {"limit": PAGE}, wait=step.wait)
        if talk is not None and talk.mail:
            tokens = list(talk.mail)[step.pick % len(talk.mail) :][: 1 + step.pick % 3]
            self._plain(step, "ack", "mail.ack", {"ids": [talk.mail[t] for t in tokens]}, tokens=tuple(tokens))

    def _do_send(self, step: Step) -> None:
        talk = self._talk(step)
        if talk is None or talk.op is not None:
            return
        if talk.owed is not None and talk.owed["from"] == talk.name:
            params, talk.owed = talk.owed["params"], None
        else:
            params = self._letter(step, talk)
        self._plain(step, "send", "mail.send", params, to=tuple(params["to"]), token=params["subject"])

    def _do_stale(self, step: Step) -> None:
        """An act under an older epoch than its session holds."""
        talk = self._talk(step)
        if talk is not None and talk.epoch > 1 and not self._body(talk).agent.real:
            params = self._letter(step, talk)
            said = {"to": tuple(params["to"]), "token": params["subject"], "epoch": talk.epoch - 1}
            self._plain(step, "stale", "mail.send", params, **said)

    def _do_agree(self, step: Step) -> None:
        """What a list says of a name is what a claim gets."""
        talk = self._talk(step)
        if talk is None:
            return
        alone = self._settle_all()
        looked = self._act(talk, "list", "identity.list", {"all": True})
        shown = next((row for row in looked.rows if row.name == step.name), None) if looked is not None else None
        if shown is None:
            return
        newest = max((fault.at for fault in self.history.faults), default=0.0)
        quiet = time.monotonic() - newest > SETTLE + GRACE
        said: dict[str, Any] = {"listed": shown.error, "calm": alone and (shown.claimable or quiet)}
        self._act(talk, "claim", "identity.claim", {"name": step.name}, name=step.name, **said)

    def _do_burst(self, step: Step) -> None:
        for one in step.burst([agent.talks for agent in self._cast]):
            getattr(self, "_do_" + one.what)(one)

    def _do_repeat(self, step: Step) -> None:
        """The newest act once more, under its request id (or the key of the message)."""
        talk = self._talk(step)
        if talk is None or talk.last is None or talk.op is not None:
            return
        call, first, shim, body = talk.last
        if not shim.alive or shim.stopped:
            return
        if isinstance(shim.voice, RawVoice):
            again = self._act(talk, "repeat", call.method, call.params, repeats=call, shim=shim, token=first.token)
        elif first.what == "send" and first.name == talk.name:
            again = self._act(talk, "repeat", call.method, call.params, shim=shim, token=first.token)
        else:
            return
        if again is not None and again.ok:
            again.same = reading.essence(again.body) == reading.essence(body)

    # -- what people do --------------------------------------------------------------------------------------

    def _do_free(self, step: Step) -> None:
        at = time.monotonic()
        done = self._ask(
            "admin.free", {"name": step.name, "reason": "torture"}, refused={"UNKNOWN_IDENTITY", "DISK_FULL"}
        )
        if done is not None:
            self.history.faults.append(Fault("free", step.name, at, time.monotonic()))

    def _do_look(self, step: Step) -> None:
        """Looking writes nothing."""
        talk = self._talk(step)
        if talk is None or not self._settle_all():
            return
        for _ in range(3):
            before = self._ask("status", {})["journal_seq"]
            self._act(talk, "list", "identity.list", {"all": True})
            self._act(talk, "inbox", "mail.inbox", {"limit": PAGE})
            if talk.mail:
                self._act(talk, "read", "mail.read", {"ids": list(talk.mail.values())[:20]})
            if self._ask("status", {})["journal_seq"] == before:
                return  # else it was a death that was seen meanwhile
        raise Broken("looking wrote something")

    # -- what happens to processes ---------------------------------------------------------------------------

    def _do_start(self, step: Step) -> None:
        if not self._of(step).alive:
            self._born(step.who)

    def _do_kill(self, step: Step) -> None:
        body = self._of(step)
        if body.alive:
            self._kill(body, ghost=step.name if step.pick % 3 == 0 else "")

    def _do_kill_shim(self, step: Step) -> None:
        body = self._of(step)
        living = body.living()
        if not living or not body.alive:
            return
        if body.sealed:
            self._kill(body)
            return
        shim = living[step.pick % len(living)]
        self.history.faults.append(Fault("shim", shim.id, time.monotonic()))
        shim.signal(signal.SIGKILL)
        shim.alive = False
        for talk in body.talks:
            if talk.shim is shim:
                self._give_up(talk)

    def _do_kill_wrapper(self, step: Step) -> None:
        body = self._of(step)
        if body.alive and not body.host_stopped and body.kill_between():
            self._by_pid.update(dict.fromkeys(body.pids, body))

    def _do_add_shim(self, step: Step) -> None:
        body = self._of(step)
        if body.able:
            body.add_shim()

    def _do_stop(self, step: Step) -> None:
        if self._of(step).alive:
            self._of(step).stop(shim=step.pick % 2 == 0)

    def _do_go(self, step: Step) -> None:
        self._of(step).go()

    def _do_cut(self, step: Step) -> None:
        for shim in self._of(step).living():
            shim.voice.cut()

    def _do_wait(self, step: Step) -> None:
        pause(GRACE + 0.3 if step.pick % 2 else 0.2)

    # -- what happens to the daemon and the machine ----------------------------------------------------------

    def _do_daemon_kill(self, step: Step) -> None:
        self.daemons.end()
        if step.pick % 3:
            self._up()

    def _do_daemon_stop(self, step: Step) -> None:
        self.daemons.end(signal.SIGTERM)
        if step.pick % 3:
            self._up()

    def _do_daemon_upgrade(self, step: Step) -> None:
        self.daemons.replace(signal.SIGTERM if step.pick % 2 else signal.SIGKILL)
        self._up()

    def _do_daemon_fault(self, step: Step) -> None:
        self.daemons.restart_with_fault(step.pick)

    def _do_daemon_pause(self, step: Step) -> None:
        """Everybody claims the same name while it stands still."""
        self._up()
        if not self.daemons.signal(signal.SIGSTOP):
            return
        try:
            for talk in list(self._talks.values()):
                self._act(talk, "claim", "identity.claim", {"name": step.name}, name=step.name, wait=False, up=False)
            pause(step.pick % 5 / 10)
        finally:
            self.daemons.signal(signal.SIGCONT)

    def _do_clock(self, step: Step) -> None:
        self.daemons.set_clock(CLOCKS[step.pick % len(CLOCKS)])

    def _do_disk_full(self, step: Step) -> None:
        self.daemons.fill_disk(files=step.pick % 2 == 0)

    def _do_disk_room(self, step: Step) -> None:
        self.daemons.make_room()

    # -- requests --------------------------------------------------------------------------------------------

    def _plain(self, step: Step, what: str, method: str, params: dict[str, Any], **said: Any) -> None:
        talk = self._talk(step)
        if talk is not None:
            self._act(talk, what, method, params, wait=step.wait, pick=step.pick, **said)

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

    def _letter(self, step: Step, talk: Talk) -> dict[str, Any]:
        self._counter += 1
        token = f"t{self._counter}"
        at = plan.NAMES.index(step.name)
        to = [plan.NAMES[(at + n) % len(plan.NAMES)] for n in range(1 + step.pick % 2)]
        size = (0, 10, 2000, 30_000)[step.pick % 4]
        letter = {"to": [name for name in to if name != talk.name] or [plan.NAMES[at - 1]], "subject": token}
        return {**letter, "body": "x" * size or "-", "idempotency_key": token}

    # -- people ----------------------------------------------------------------------------------------------

    def _ask(self, method: str, params: dict[str, Any], *, refused: set[str] | None = None) -> Any:
        """What a person's command gets; None when it is refused with one of these codes."""
        for _ in range(10):
            self._up()
            try:
                with self.daemons.connect() as person:
                    return person.call(method, params)
            except OSError:
                continue
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

    def _of(self, step: Step) -> Body:
        """The agent that a step is about; its first life begins with the first step."""
        return self._bodies.get(step.who) or self._born(step.who)

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

    def _talk(self, step: Step) -> Talk | None:
        """The conversation that a step is about. Half the time an agent that is gone, or has no shim, starts anew."""
        if step.pick % 2:
            self._do_start(step)
            if not self._of(step).living():
                self._do_add_shim(step)
        body = self._of(step)
        return body.talks[step.talk % len(body.talks)] if body.alive else None
