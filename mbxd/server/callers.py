"""Who a connection speaks for, worked out from the kernel's evidence.

Owns the way from a peer to a Caller. What a client says of itself is a label or a wish, never authority.
"""

from __future__ import annotations

from dataclasses import dataclass

from mbx_wire.envelope import HelloParams, Meta, ProjectRef
from mbx_wire.errors import Code
from mbxd.core.context import Caller
from mbxd.core.rejected import Rejected
from mbxd.ports import ProcessId
from mbxd.runtime.holders import Watched
from mbxd.runtime.peer import HostFinding
from mbxd.server.limits import HELLO_TEXT_MAX
from mbxd.server.services import Services

COMMAND_LINE = "mbxctl"
HANDLE_MAX = 200
REQUEST_ID_MAX = 128
HINT_MAX = 264
HINTS_MAX = 4


@dataclass(slots=True)
class Introduced:
    """A connection after `hello`: what every Caller of it has in common, and the processes it keeps watched.

    client: the name that others see; label: what the process tree says; version: of the client, as it says.
    """

    client: str
    label: str
    instance: str
    host: ProcessId | None
    shim: ProcessId
    command_line: bool
    watched: list[Watched]
    project: ProjectRef | None = None
    resume: tuple[str, ...] = ()
    agent: str | None = None
    container: str | None = None
    version: str = ""

    def caller(self, meta: Meta, services: Services) -> Caller:
        """The caller of one request. Raises Rejected for a handle or request id out of bounds."""
        handle, request_id = meta.session or "", meta.request_id or ""
        if len(handle) > HANDLE_MAX or len(request_id) > REQUEST_ID_MAX:
            raise Rejected(
                Code.PARAMETER_INVALID,
                f"`meta` is too long: a session handle has at most {HANDLE_MAX} characters, "
                f"a request id {REQUEST_ID_MAX}.",
                "Send shorter ones.",
            )
        shims: tuple[ProcessId, ...] = (self.shim,)
        conversations: tuple[str, ...] = ()
        if self.command_line:
            # It is no shim: it ends in a moment. The session's own shims keep its claim attached.
            shims = () if self.host is None else tuple(services.shims_of.get(self.host, ()))
            conversations = () if self.host is None else tuple(services.handles_of.get(self.host, ()))
        elif handle and self.host is not None:
            services.heard(self.host, handle)
        return Caller(
            client=self.client,
            host=self.host,
            handle=handle,
            shims=shims,
            resume=self.resume,
            agent=self.agent,
            project=self.project,
            beneath_agent=self.command_line and self.host is not None,
            instance=self.instance,
            request_id=request_id,
            epoch=meta.epoch,
            conversations=conversations,
        )


def introduce(hello: HelloParams, finding: HostFinding, services: Services) -> Introduced:
    """Put the hello and the finding together, and begin to watch the processes behind it."""
    holders = services.holders
    command_line = hello.client.name == COMMAND_LINE
    if command_line:
        host = finding.agent(lambda process: process in services.shims_of or holders.is_host(process))
    else:
        # A shim that spoke for a holder stays with that host, whatever became of the wrappers between them.
        host = holders.host_of_shim(finding.shim) or finding.host
    shim = holders.hold(finding.shim, finding.shim_handle)
    watched, unused = [shim], finding.handles() - {finding.shim_handle}
    if host is not None and host != finding.shim:
        watched.append(holders.hold(host, finding.host_handle if host == finding.host else None))
        unused -= {finding.host_handle if host == finding.host else None}
    for handle in unused:
        services.processes.close(handle)
    who = Introduced(
        client="unknown",
        label=finding.label,
        instance=_instance(hello.client.instance, finding.shim),
        host=host,
        shim=finding.shim,
        command_line=command_line,
        watched=watched,
    )
    update(who, hello)
    return who


def _instance(said: str, shim: ProcessId) -> str:
    """A client's name for itself, in its own process: who hears another's name gets none of its kept results."""
    return f"{shim.pid}.{shim.ticks}:{said[:REQUEST_ID_MAX]}"


def update(who: Introduced, hello: HelloParams) -> None:
    """Take the labels and wishes of a hello; a later one knows better (the agent CLI's own name comes late)."""
    label = hello.client.label or (who.label if hello.client.name == "mbx-mcp" else hello.client.name)
    if who.command_line:
        label = "owner" if who.host is None else who.label
    who.client = _clean(label) or "unknown"
    who.project = hello.project
    who.resume = tuple(hint for hint in hello.hints.resume if 0 < len(hint) <= HINT_MAX)[:HINTS_MAX]
    who.agent = hello.hints.agent or None
    who.container = hello.hints.container
    who.version = _clean(hello.client.version)


def check_hello(hello: HelloParams) -> None:
    """Bounds on everything that is kept or shown."""
    texts = [hello.cwd or "", hello.hints.agent or "", hello.hints.container or "", hello.client.label or ""]
    if hello.project is not None:
        texts += [hello.project.key, hello.project.slug]
    if any(len(text) > HELLO_TEXT_MAX for text in texts):
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"A text in hello is longer than {HELLO_TEXT_MAX} characters.",
            "Send a shorter one.",
        )
    if not hello.client.instance:
        raise Rejected(
            Code.PARAMETER_MISSING,
            "`client.instance` is empty.",
            "Send a random string, the same for the whole process.",
        )
    if hello.project is not None and not hello.project.key:
        raise Rejected(Code.PARAMETER_MISSING, "`project.key` is empty.", "Leave `project` out when there is none.")


def _clean(label: str) -> str:
    # Labels are shown in rows, messages and terminals: one short line of plain characters.
    return "".join(c for c in label[:40] if c.isascii() and c.isprintable())
