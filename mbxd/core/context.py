"""What a rule may know beside the state: the caller, the time, the evidence. Data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mbx_wire.envelope import ProjectRef
from mbxd.core.events import SessionRef
from mbxd.core.liveness import Evidence, Policy
from mbxd.ports import ProcessId


@dataclass(slots=True, unsafe_hash=True)
class Caller:
    """Who asks. Never changed; it is not frozen because one is made for every request, at five times the cost.

    host: the host process of the session, None for a person. handle: conversation handle or "".
    shims: processes that speak for the session now. resume: hints of the process; agent: the wished name.
    beneath_agent: the command runs below an agent CLI, so people's levers are refused.
    instance, request_id: where the result is kept; either may be "" (then nothing is kept).
    epoch: the epoch the caller believes it holds, if it said so.
    conversations: for a command line, the handles that were heard from its host process.
    """

    client: str
    host: ProcessId | None = None
    handle: str = ""
    shims: tuple[ProcessId, ...] = ()
    resume: tuple[str, ...] = ()
    agent: str | None = None
    project: ProjectRef | None = None
    beneath_agent: bool = False
    instance: str = ""
    request_id: str = ""
    epoch: int | None = None
    conversations: tuple[str, ...] = ()

    def session(self, handle: str) -> SessionRef:
        """The caller's session under this handle, as it stands in the log. Only for callers with a host."""
        if self.host is None:
            raise AssertionError("a person has no session")
        # The process's own hints would name all its conversations: a handle is its only hint.
        hints = (f"{self.client}:{handle}",) if handle else self.resume
        return SessionRef(self.host, handle, self.client, hints)


PERSON = Caller(client="owner")


def no_evidence(_identity: int) -> Evidence | None:
    """Nothing is known of any holder."""
    return None


@dataclass(slots=True)
class Context:
    """One decision's surroundings. Never changed; not frozen, as `Caller`.

    now: Unix seconds. evidence: of an identity's holder, None when nobody is watched for it.
    active: newest acts that are not in the state yet (identity -> Unix seconds). unread: messages not acked.
    entropy: fresh random bytes. key: the host's secret for tokens. projects: directories that the client looked
    up for the paths it names.
    """

    caller: Caller
    now: float
    policy: Policy = field(default_factory=Policy)
    evidence: Callable[[int], Evidence | None] = no_evidence
    active: Mapping[int, float] = field(default_factory=dict)
    unread: Mapping[int, int] = field(default_factory=dict)
    host_label: str = "localhost"
    container: str | None = None
    entropy: bytes = bytes(16)
    key: bytes = bytes(32)
    projects: Mapping[str, ProjectRef | None] = field(default_factory=dict)
