"""Carries out a plan with real processes, and has the record of it judged."""

from __future__ import annotations

import signal
import time
from typing import Any

from tests.support.daemon import PROJECT
from tests.torture import plan, reading
from tests.torture.bodies import Talk
from tests.torture.daemons import Broken, pause
from tests.torture.history import Fault
from tests.torture.model import SETTLE, judge
from tests.torture.plan import Step
from tests.torture.society import ADDRESSES, GRACE, PAGE, Society
from tests.torture.voices import RawVoice

JUDGE_EVERY = 25
CLOCKS = (0.0, -5.0, 5.0, -3600.0, 3600.0, -90_000.0, 90_000.0, -1.6e9)
"""Seconds by which the wall clock may be ahead."""
PROFILE = {"project_key": PROJECT["key"], "program": "agentcli", "model": "m"}


class World(Society):
    """One seed's world."""

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
        if not self._of(step.who).alive:
            self._born(step.who)

    def _do_kill(self, step: Step) -> None:
        if step.pick % 2:
            self._do_burst(step)
        body = self._of(step.who)
        if body.alive:
            self._kill(body, ghost=step.name if step.pick % 3 == 0 else "")

    def _do_kill_shim(self, step: Step) -> None:
        body = self._of(step.who)
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
        body = self._of(step.who)
        if body.alive and not body.host_stopped and body.kill_between():
            self._by_pid.update(dict.fromkeys(body.pids, body))

    def _do_add_shim(self, step: Step) -> None:
        body = self._of(step.who)
        if body.able:
            body.add_shim()

    def _do_stop(self, step: Step) -> None:
        if self._of(step.who).alive:
            self._of(step.who).stop(shim=step.pick % 2 == 0)

    def _do_go(self, step: Step) -> None:
        self._of(step.who).go()

    def _do_cut(self, step: Step) -> None:
        for shim in self._of(step.who).living():
            shim.voice.cut()

    def _do_wait(self, step: Step) -> None:
        pause(GRACE + 0.3 if step.pick % 2 else 0.2)

    # -- what happens to the daemon and the machine ----------------------------------------------------------

    def _do_daemon_kill(self, step: Step) -> None:
        if step.pick % 2:
            self._do_burst(step)  # it dies in the midst of it
        self.daemons.end()
        if step.pick % 3:
            self._up()

    def _do_daemon_stop(self, step: Step) -> None:
        if step.pick % 2:
            self._do_burst(step)
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

    # -- pieces ----------------------------------------------------------------------------------------------

    def _plain(self, step: Step, what: str, method: str, params: dict[str, Any], **said: Any) -> None:
        talk = self._talk(step)
        if talk is not None:
            self._act(talk, what, method, params, wait=step.wait, pick=step.pick, **said)

    def _letter(self, step: Step, talk: Talk) -> dict[str, Any]:
        self._counter += 1
        token = f"t{self._counter}"
        at = plan.NAMES.index(step.name)
        to = [plan.NAMES[(at + n) % len(plan.NAMES)] for n in range(1 + step.pick % 2)]
        size = (0, 10, 2000, 30_000)[step.pick % 4]
        letter = {"to": [name for name in to if name != talk.name] or [plan.NAMES[at - 1]], "subject": token}
        return {**letter, "body": "x" * size or "-", "idempotency_key": token}

    def _talk(self, step: Step) -> Talk | None:
        """The conversation that a step is about. Half the time an agent that is gone, or has no shim, starts anew."""
        if step.pick % 2:
            self._do_start(step)
            if not self._of(step.who).living():
                self._do_add_shim(step)
        body = self._of(step.who)
        return body.talks[step.talk % len(body.talks)] if body.alive else None
