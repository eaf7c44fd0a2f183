"""Every method of the socket, as data: name, params, result, and what the dispatcher must know of it."""

from __future__ import annotations

import msgspec

from mbx_wire import admin, agent, archive, envelope, identity, mail


class NoParams(msgspec.Struct, frozen=True):
    """No params; unknown members are ignored so that old daemons answer new clients."""


class Pong(msgspec.Struct, frozen=True):
    """Answer of ping."""

    pong: bool
    pid: int
    version: str


class AnyResult(msgspec.Struct, frozen=True):
    """A result whose shape the method's own page describes (tool.call: an MCP CallToolResult)."""


class Method(msgspec.Struct, frozen=True):
    """One method.

    changes: it may change durable state, so its reply waits for the disk and its request id is kept.
    frozen: part of the mini-protocol that every version answers without `hello`.
    people: refused for a caller beneath an agent CLI (people's levers).
    """

    name: str
    params: type[msgspec.Struct]
    result: type[msgspec.Struct]
    doc: str
    changes: bool = False
    frozen: bool = False
    people: bool = False


_ALL = (
    Method(
        "hello",
        envelope.HelloParams,
        envelope.HelloResult,
        "Introduces the connection and agrees on a version.",
    ),
    Method("ping", NoParams, Pong, "Answers at once.", frozen=True),
    Method("status", NoParams, admin.StatusResult, "The daemon's version, place and figures.", frozen=True),
    Method("stop", admin.StopParams, admin.StopResult, "Drains and ends the daemon.", frozen=True),
    Method("identity.list", identity.ListParams, identity.ListResult, "Identities of the project or host."),
    Method("identity.show", admin.ShowParams, admin.ShowResult, "One identity."),
    Method("identity.why", admin.ShowParams, admin.WhyResult, "The evidence behind an identity's state."),
    Method("identity.claim", identity.ClaimParams, identity.ClaimResult, "Takes a mailbox.", changes=True),
    Method("identity.register", identity.RegisterParams, identity.ClaimResult, "Makes a mailbox.", changes=True),
    Method("identity.release", identity.ReleaseParams, identity.ReleaseResult, "Lets it go.", changes=True),
    Method("agent.create", agent.CreateAgentParams, agent.AgentResult, "Makes an agent identity.", changes=True),
    Method("agent.register", agent.RegisterAgentParams, agent.AgentResult, "Takes or updates one.", changes=True),
    Method("agent.whois", agent.WhoisParams, agent.WhoisResult, "The profile of an agent."),
    Method("agent.retire", agent.RetireAgentParams, agent.RetireResult, "Puts one away.", changes=True),
    Method("project.ensure", agent.EnsureProjectParams, agent.ProjectResult, "Makes a project.", changes=True),
    Method("mail.whoami", mail.WhoamiParams, mail.WhoamiResult, "Who the session is."),
    Method("mail.inbox", mail.InboxParams, mail.MessagesResult, "Headers of what came."),
    Method("mail.read", mail.ReadParams, mail.MessagesResult, "Bodies; reading changes nothing."),
    Method("mail.send", mail.SendParams, mail.SendResult, "Sends.", changes=True),
    Method("mail.reply", mail.ReplyParams, mail.SendResult, "Answers in the thread.", changes=True),
    Method("mail.ack", mail.AckParams, mail.AckResult, "Is done with messages.", changes=True),
    Method("mail.sent", mail.SentParams, mail.MessagesResult, "What was sent, and what became of it."),
    Method("mail.thread", mail.ThreadParams, mail.MessagesResult, "A thread."),
    Method("mail.search", mail.SearchParams, mail.MessagesResult, "Words in mail."),
    Method("mail.peek", mail.PeekParams, mail.MessagesResult, "Looks into any mailbox.", people=True),
    Method("mail.backup", mail.BackupParams, mail.BackupResult, "Copies the mail file.", people=True),
    Method("mail.check", NoParams, mail.CheckResult, "Looks for damage in it.", people=True),
    Method("mail.prune", mail.PruneParams, mail.PruneResult, "Deletes what ended.", changes=True, people=True),
    Method("tool.call", admin.ToolCallParams, AnyResult, "An MCP tools/call whole.", changes=True),
    Method(
        "admin.free",
        admin.FreeParams,
        admin.AdminResult,
        "Makes a mailbox vacant.",
        changes=True,
        people=True,
    ),
    Method("admin.retire", admin.NameOnlyParams, admin.AdminResult, "Puts away.", changes=True, people=True),
    Method("admin.unretire", admin.NameOnlyParams, admin.AdminResult, "Brings back.", changes=True, people=True),
    Method("admin.rename", admin.RenameParams, admin.AdminResult, "Renames.", changes=True, people=True),
    Method("admin.token", agent.TokenParams, agent.TokenResult, "Shows a token.", changes=True, people=True),
    Method("admin.sweep", agent.SweepParams, agent.SweepResult, "Retires the idle.", changes=True, people=True),
    Method("admin.log", admin.LogParams, admin.LogResult, "The registry's history."),
    Method("admin.stats", NoParams, admin.StatsResult, "Counters of the daemon's parts."),
    Method("archive.status", NoParams, archive.ArchiveStatusResult, "How far the Git archive is."),
    Method("archive.verify", NoParams, archive.ArchiveVerifyResult, "Compares it with the registry."),
    Method("archive.rebuild", NoParams, archive.ArchiveRebuildResult, "Makes it anew.", people=True),
    Method("archive.log", archive.ArchiveLogParams, archive.ArchiveLogResult, "Its commits."),
    Method("events.subscribe", admin.SubscribeParams, admin.SubscribeResult, "Streams durable changes."),
)

METHODS: dict[str, Method] = {method.name: method for method in _ALL}
"""Method name -> method."""
