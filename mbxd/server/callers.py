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
from mbxd.runtime.holders import Holders, Watched
from mbxd.runtime.peer import HostFinding
from mbxd.server.limits import HELLO_TEXT_MAX

COMMAND_LINE = "mbxctl"
HANDLE_MAX = 200
REQUEST_ID_MAX = 128


@dataclass(slots=True)
class Introduced:
    """A connection after `hello`: what every Caller of it has in common, and the processes it keeps watched."""

    client: str
    instance: str
    host: ProcessId | None
    shim: ProcessId
    command_line: bool
    project: ProjectRef | None
    resume: tuple[str, ...]
    agent: str | None
    container: str | None
    watched: list[Watched]

    def caller(self, meta: Meta, shims_of_host: dict[ProcessId, int]) -> Caller:
        """The caller of one request. Raises Rejected for a handle or request id out of bounds."""
        handle, request_id = meta.session or "", meta.request_id or ""
        if len(handle) > HANDLE_MAX or len(request_id) > REQUEST_ID_MAX:
            raise Rejected(
                Code.PARAMETER_INVALID,
                f"`meta` is too long: a session handle has at most {HANDLE_MAX} characters, "
                f"a request id {REQUEST_ID_MAX}.",
                "Send shorter ones.",
            )
        # A command line is no shim: it ends in a moment. The session's own shims keep its claim attached.
        shims = tuple(shims_of_host) if self.command_line else (self.shim,)
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
        )


def introduce(hello: HelloParams, finding: HostFinding, agent: ProcessId | None, holders: Holders) -> Introduced:
    """Put the hello and the finding together, and begin to watch the processes behind it.

    agent: for a command line, the host process of the agent session that it runs beneath.
    """
    command_line = hello.client.name == COMMAND_LINE
    host = agent if command_line else finding.host
    shim = holders.hold(finding.shim, finding.shim_handle)
    watched = [shim]
    if host is not None and host != finding.shim:
        watched.append(holders.hold(host, None if command_line else finding.host_handle))
    label = hello.client.label or (finding.label if hello.client.name == "mbx-mcp" else hello.client.name)
    if command_line:
        label = finding.label if host is not None else "owner"
    return Introduced(
        client=_clean(label) or "unknown",
        instance=hello.client.instance[:REQUEST_ID_MAX],
        host=host,
        shim=finding.shim,
        command_line=command_line,
        project=hello.project,
        resume=tuple(hint for hint in hello.hints.resume if 0 < len(hint) <= HANDLE_MAX + 64)[:4],
        agent=hello.hints.agent or None,
        container=hello.hints.container,
        watched=watched,
    )


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
