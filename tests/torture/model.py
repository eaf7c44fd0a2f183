"""Judges a history: who may and who must hold what, and which mail must and which must not be unread. Pure.

Everything is said in two bounds. A grant is *certain* from its reply until the first moment at which something may
have ended it (a release sent, a kill, a person, the detach grace over), and *possible* from the request until
something has surely ended it. What is certain may be contradicted by nothing; what is seen must be possible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from tests.torture.history import History, Op
from tests.torture.mailmodel import judge_mail

SETTLE = 3.0
"""Seconds after which a death has surely been seen, and a request that was given up has no effect any more."""
GRANTS = ("claim", "register", "resume", "create", "take")
NEEDS = ("inbox", "read", "send", "ack", "stale")
"""Acts for which a session takes back by itself what it, or the conversation that it resumes, held last."""
ATTACHES = (*GRANTS, "send", "ack")
"""Acts: the shim of one that succeeds is logged as one of the session."""
EXCUSED = {"DISK_FULL", "STOPPING", "DAEMON_DOWN", "MAIL_UNAVAILABLE", "BUSY"}
"""Refusals that say nothing about who holds what; nothing happened."""


@dataclass(slots=True)
class Hold:
    """One grant, seen from outside. done: `inf` when its reply never came."""

    session: str
    host: str
    shim: str
    name: str
    epoch: int
    sent: float
    done: float
    provisional: bool = False
    certain_until: float = inf
    possible_until: float = inf

    def covers(self, op: Op) -> bool:
        """Whether it was surely held while this was asked and answered."""
        return self.done <= op.sent and op.done < self.certain_until


class Book:
    """The holds of a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.killed = {f.subject: f.at for f in history.faults if f.what == "host"}
        self.shim_died = {f.subject: f.at for f in history.faults if f.what == "shim"}
        self._by_session: dict[str, list[Op]] = defaultdict(list)
        for op in history.ops:
            self._by_session[op.session].append(op)
        self._handovers = [o for o in history.ops if o.what == "take" and o.shown and (o.ok or not o.answered)]
        self.holds = list(self._grants())
        self.by_name: dict[str, list[Hold]] = defaultdict(list)
        for hold in self.holds:
            self.by_name[hold.name].append(hold)
        for hold in self.holds:
            hold.certain_until = min([self.killed.get(hold.host, inf), self._loose_from(hold), *self._perhaps(hold)])
            hold.possible_until = min([self.killed.get(hold.host, inf) + SETTLE, *self._surely(hold)])

    def certain(self, op: Op) -> Hold | None:
        """What the session of this operation surely held meanwhile."""
        mine = (h for h in self.holds if h.session == op.session and h.covers(op))
        return next(mine, None)

    def possible(self, op: Op, *, session: str | None = None, name: str | None = None) -> bool:
        """Whether a session may have held a name at some moment of this operation."""
        return any(
            h.sent <= op.done and op.sent <= h.possible_until
            for h in (self.holds if name is None else self.by_name[name])
            if session is None or h.session == session
        )

    def _grants(self) -> Iterator[Hold]:
        first: dict[tuple[str, str, int], Hold] = {}
        held: dict[str, dict[str, str]] = defaultdict(dict)
        """The names that each conversation may have held: (name, newest session)."""
        for op in self.history.ops:
            unnamed = op.what == "resume" and not op.answered
            for name, session in held[op.handle or op.session].items():
                # Only another process takes the name back by itself: this one let it go or lost it.
                if unnamed or (op.what in NEEDS and session != op.session):
                    yield Hold(op.session, op.host, op.shim, name, 0, op.sent, inf)
            if op.what not in GRANTS or not op.name or (op.answered and not (op.ok and op.bound)):
                continue
            held[op.handle or op.session][op.name] = op.session
            hold = Hold(op.session, op.host, op.shim, op.name, op.epoch, op.sent, op.done, op.what == "create")
            known = first.setdefault((op.session, op.name, op.epoch), hold) if op.answered else hold
            if known is hold:
                yield hold

    def _perhaps(self, hold: Hold) -> Iterator[float]:
        """Moments from which the session may have lost it or let it go."""
        for op in self._by_session[hold.session]:
            if op.what != "release" or (op.answered and op.released != hold.name):
                continue
            if op.sent >= hold.sent:
                yield op.sent
            elif min(op.done, op.lost + SETTLE) > hold.sent:
                yield hold.sent  # a release that was given up may have come through later
        for fault in self.history.faults:
            if fault.what == "free" and fault.subject == hold.name and fault.done >= hold.sent:
                yield fault.at

        for op in self._handovers:
            if op.name != hold.name or op.session == hold.session or op.done < hold.sent:
                continue
            if hold.provisional and not self._confirmed(hold, op.sent):
                yield op.sent
            elif (alone := self._loose_from(hold) - self.history.grace) <= op.done:
                yield alone  # a token needs no grace

    def _confirmed(self, hold: Hold, before: float) -> bool:
        """Whether the session had surely acted under the grant, or claimed it, by then."""
        return any(
            op.ok and op.what in ATTACHES and hold.done <= op.sent and op.done < before
            for op in self._by_session[hold.session]
        )

    def _surely(self, hold: Hold) -> Iterator[float]:
        """Moments from which the session surely had it no longer."""
        for op in self._by_session[hold.session]:
            if op.what == "release" and op.ok and op.sent >= hold.done:
                yield op.done
        for fault in self.history.faults:
            if fault.what == "free" and fault.ok and fault.subject == hold.name and fault.at >= hold.done:
                yield fault.done
        for other in self.by_name[hold.name]:
            if other.session != hold.session and other.sent >= hold.done:
                yield other.done

    def _loose_from(self, hold: Hold) -> float:
        """When others may have claimed it because no shim of the session was alive for the grace."""
        attached = self.shim_died.get(hold.shim, inf)
        spoke = sorted(
            (op.done, self.shim_died.get(op.shim, inf))
            for op in self._by_session[hold.session]
            if op.ok and op.what in ATTACHES and op.done >= hold.done
        )
        for since, until in spoke:
            if since <= attached + self.history.grace:
                attached = max(attached, until)
        return attached + self.history.grace

    def attached(self, hold: Hold, op: Op) -> bool:
        """Whether a shim of the holder surely lived while this was asked."""
        return hold.covers(op) and self.shim_died.get(hold.shim, inf) > op.done


def judge(history: History) -> list[str]:
    """Everything that is wrong, in words; empty when the history can be explained."""
    book = Book(history)
    checks = (_holders, _epochs, _grants, _lists, _refusals, _answers)
    return [*(text for check in checks for text in check(book)), *judge_mail(book)]


def _holders(book: Book) -> Iterator[str]:
    """At most one holder of an identity; nobody is displaced."""
    for holds in book.by_name.values():
        for one in holds:
            for other in holds:
                if one.session == other.session or not one.done <= other.done < one.certain_until:
                    continue
                if other.sent >= one.done:
                    yield f"{other.session} displaced {one.session}, who held {one.name} ({one.epoch}, {other.epoch})"
                elif other.done < other.certain_until:
                    yield f"{one.session} and {other.session} hold {one.name} ({one.epoch}, {other.epoch})"


def _epochs(book: Book) -> Iterator[str]:
    """An epoch belongs to one session, and rises."""
    for name, holds in book.by_name.items():
        answered = sorted((h for h in holds if h.done < inf), key=lambda h: h.done)
        owners: dict[int, str] = {}
        for hold in answered:
            if owners.setdefault(hold.epoch, hold.session) != hold.session:
                yield f"epoch {hold.epoch} of {name} was given to {owners[hold.epoch]} and to {hold.session}"
            before = max((h.epoch for h in answered if h.done < hold.sent), default=0)
            if hold.epoch < before:
                yield f"the epoch of {name} fell from {before} to {hold.epoch}"


def _grants(book: Book) -> Iterator[str]:
    """One session, one identity; the dead get nothing."""
    for op in book.history.ops:
        if op.what not in GRANTS or not op.ok or not op.bound:
            continue
        held = book.certain(op)
        if held is not None and (held.name, held.epoch) != (op.name, op.epoch):
            yield f"{op.session} got {op.name} ({op.epoch}) and held {held.name} ({held.epoch})"
        if book.killed.get(op.host, inf) + SETTLE < op.sent:
            yield f"{op.session} got {op.name} after its process had ended"


def _lists(book: Book) -> Iterator[str]:
    """Lists show what is held, and by whom."""
    for op in book.history.ops:
        if not op.ok or op.what != "list":
            continue
        held = book.certain(op)
        if held is not None and op.you != (held.name, held.epoch):
            yield f"{op.session} holds {held.name} ({held.epoch}), its list says {op.you}"
        if op.you is not None and not book.possible(op, session=op.session, name=op.you[0]):
            yield f"{op.session} can't hold {op.you}"
        for row in op.rows:
            shown_to = row.holder == op.session and book.shim_died.get(op.shim, inf) > op.done
            if shown_to and row.state != "live" and book.killed.get(op.host, inf) > op.done:
                yield f"{op.session} asks and is shown to itself as {row.state}"
            if row.holder and not book.possible(op, session=row.holder, name=row.name):
                yield f"{row.name} is shown as held by {row.holder}, who can't hold it"
            for hold in book.by_name[row.name]:
                if not hold.covers(op):
                    continue
                if row.holder != hold.session:
                    yield f"{hold.session} holds {row.name}, a list says {row.state} {row.holder}"
                elif book.attached(hold, op) and row.state != "live":
                    yield f"{hold.session} holds {row.name} and is attached, a list says {row.state}"
                elif row.claimable != (hold.session == op.session):
                    yield f"{row.name} of {hold.session} is shown to {op.session} as claimable={row.claimable}"


def _refusals(book: Book) -> Iterator[str]:
    """Who is refused is refused for a reason."""
    for op in book.history.ops:
        if op.ok or not op.answered or op.code in EXCUSED:
            continue
        held = book.certain(op)
        match op.code:
            case "IDENTITY_IN_USE":
                if op.holder and not book.possible(op, session=op.holder, name=op.name):
                    yield f"{op.name} was refused to {op.session} for {op.holder}, who can't hold it"
                elif held is not None and held.name == op.name:
                    yield f"{op.session} was refused {op.name}, which it holds"
            case "HOLDS_ANOTHER":
                if not any(book.possible(op, session=op.session, name=n) for n in book.by_name if n != op.name):
                    yield f"{op.session} was refused {op.name} for another that it can't hold"
            case "NOT_BOUND" | "LEASE_LOST":
                if held is not None and op.what != "stale":
                    yield f"{op.session} holds {held.name} ({held.epoch}) and was told {op.code}"
            case "UNKNOWN_IDENTITY":
                known = {o.name for o in book.history.ops if o.ok and o.what in GRANTS and o.done < op.sent}
                if set(op.to or (op.name,)) <= known:
                    yield f"{op.session} was told that {op.to or op.name} is unknown"
            case "NAME_TAKEN":
                if not any(_made(other, op.name) and other.sent < op.done for other in book.history.ops):
                    yield f"{op.name} was taken by nobody"
            case "ROLE_REQUIRED" if any(_made(o, op.name) for o in book.history.ops if o.what != "register"):
                continue  # an agent's mailbox has none
            case "NAME_REQUIRED":
                if held is not None:
                    yield f"{op.session} holds {held.name} and was asked for a name"
            case "NOT_YOURS" if op.what == "read":
                continue  # it asks for what it saw in a mailbox that it may hold no longer
            case "NOT_ALLOWED":
                if op.host not in book.killed and op.shim not in book.shim_died:
                    yield f"{op.session} lives and was told that it has ended"
            case _:
                yield f"{op.session} got {op.code} for {op.what} {op.name}"


def _made(op: Op, name: str) -> bool:
    """Whether this may have made the mailbox."""
    return op.what in {"register", "create", "take"} and op.name == name and (op.ok or not op.answered)


def _answers(book: Book) -> Iterator[str]:
    """List and claim agree; a repeat is no second act; a release tells the truth; an older epoch acts no more."""
    for op in book.history.ops:
        held = book.certain(op)
        if op.listed is not None and op.calm and op.answered and op.code not in EXCUSED and op.listed != op.code:
            yield f"{op.session} was shown {op.listed or 'claimable'} for {op.name} and got {op.code or 'it'}"
        if not op.same:
            yield f"{op.session} repeated {op.token or op.name} and got another answer"
        if op.what == "release" and op.ok and held is not None and op.released != held.name:
            yield f"{op.session} held {held.name} and released {op.released or 'nothing'}"
        if op.what == "stale" and op.ok and held is not None and op.epoch < held.epoch:
            yield f"{op.session} acted under epoch {op.epoch} of {held.name}, which is at {held.epoch}"
