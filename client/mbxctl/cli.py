"""The commands' spelling, in click. Each command imports its work only when it runs.

Owns names, options and help texts. Never does anything itself: a command is one call into its module. Usage
errors become `Failure`s, so that they honour --json and exit with 2 like every other one.
"""

from __future__ import annotations

import os

import click

from mbx_wire.errors import EXIT_USAGE, Code
from mbxctl import mailverbs
from mbxctl.failure import Failure
from mbxctl.grammar import Group, MissingCommand
from mbxctl.render import Output

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_PROJECT = "A project's directory or slug; by default the one of this directory."


def run(args: list[str], out: Output) -> int:
    """Parse and run; the command's exit code. Failures are raised, never shown here."""
    if os.environ.get("_MBXCTL_COMPLETE"):
        mbxctl.main(args, prog_name="mbxctl")  # click's shell completion, which ends the process
    try:
        # Not by click's own main: that ends the process with 1 when the reader of a pipe has gone.
        with mbxctl.make_context("mbxctl", list(args), obj=out) as context:
            code = mbxctl.invoke(context)
    except click.exceptions.Exit as done:
        code = done.exit_code
    except MissingCommand as error:
        return _which_command(out, error)
    except click.UsageError as error:
        raise _usage(error) from None
    except click.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0


def _which_command(out: Output, error: MissingCommand) -> int:
    """The help, on stderr, since it is no result."""
    path = error.ctx.command_path if error.ctx else "mbxctl"
    if out.json:
        raise Failure(Code.PARAMETER_MISSING, "which command?", f"`{path} --help` lists them.")
    for line in (error.ctx.get_help() if error.ctx else "").splitlines():
        out.talk(line)
    return EXIT_USAGE


def _usage(error: click.UsageError) -> Failure:
    code = Code.PARAMETER_INVALID
    if isinstance(error, click.NoSuchOption):
        code = Code.PARAMETER_UNKNOWN
    elif isinstance(error, click.MissingParameter):
        code = Code.PARAMETER_MISSING
    path = error.ctx.command_path if error.ctx else "mbxctl"
    return Failure(code, error.format_message(), f"`{path} --help` shows the usage.", exit_code=EXIT_USAGE)


def _show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value:
        return
    from mbxctl import link

    out: Output = ctx.obj
    if out.json:
        out.document({"version": link.installed_version()})
    out.data(f"mbxctl {link.installed_version()}")
    ctx.exit()


@click.group(cls=Group, context_settings=_SETTINGS)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show it.")
def mbxctl() -> None:
    """Named mailbox identities for coding agents, seen and steered by people and scripts.

    Looking (list, show, why, log, status, doctor, ...) never starts a daemon and changes nothing.

    Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 conflict, 5 timeout or outcome unknown, 69 no daemon,
    130 interrupted, 141 nobody reads the output.
    """


@mbxctl.command("list")
@click.option("--all", "everything", is_flag=True, help="The whole host instead of this project.")
@click.pass_obj
def _list(out: Output, everything: bool) -> int:
    """Show the identities of this project."""
    from mbxctl import listing

    return listing.run_list(out, everything=everything)


@mbxctl.command("show")
@click.argument("name")
@click.pass_obj
def _show(out: Output, name: str) -> int:
    """Show one identity in full."""
    from mbxctl import inspecting

    return inspecting.run_show(out, name)


@mbxctl.command("why")
@click.argument("name")
@click.pass_obj
def _why(out: Output, name: str) -> int:
    """Show the evidence behind an identity's state."""
    from mbxctl import inspecting

    return inspecting.run_why(out, name)


@mbxctl.command("whois")
@click.argument("name")
@click.option("--project", help=_PROJECT)
@click.pass_obj
def _whois(out: Output, name: str, project: str | None) -> int:
    """Show an agent's profile: program, model, task, state."""
    from mbxctl import agents

    return agents.run_whois(out, name, project)


@mbxctl.command("log")
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many entries.")
@click.pass_obj
def _log(out: Output, name: str | None, limit: int) -> int:
    """Show who claimed, lost, released what, when and why."""
    from mbxctl import inspecting

    return inspecting.run_log(out, name, limit)


@mbxctl.command("watch")
@click.option("--all", "everything", is_flag=True, help="The whole host instead of this project.")
@click.pass_obj
def _watch(out: Output, everything: bool) -> int:
    """Show changes as they happen, until Ctrl-C (--json: one document a line)."""
    from mbxctl import watching

    return watching.run_watch(out, everything=everything)


@mbxctl.command("claim")
@click.argument("name", required=False)
@click.option("--role", help="What the mailbox is for; needed when it has no role yet.")
@click.option("--description", help="One line about a mailbox that this creates.")
@click.pass_obj
def _claim(out: Output, name: str | None, role: str | None, description: str | None) -> int:
    """Take a mailbox for the agent session around this command."""
    from mbxctl import acting

    return acting.run_claim(out, name, role, description)


@mbxctl.command("register")
@click.argument("name")
@click.option("--role", required=True, help="What the mailbox is for, for example backend.")
@click.option("--description", help="One line about the mailbox, at most 200 characters.")
@click.pass_obj
def _register(out: Output, name: str, role: str, description: str | None) -> int:
    """Make a mailbox; an agent session holds it at once."""
    from mbxctl import acting

    return acting.run_register(out, name, role, description)


@mbxctl.command("release")
@click.pass_obj
def _release(out: Output) -> int:
    """Let go the mailbox of the agent session around this command."""
    from mbxctl import acting

    return acting.run_release(out)


@mbxctl.command("create")
@click.option("--program", required=True, help="The agent CLI, for example codex.")
@click.option("--model", required=True, help="The model it runs.")
@click.option("--hint", help="A wished name, like GreenCastle; without it one is made.")
@click.option("--task", help="What the agent is to work on.")
@click.option("--project", help=_PROJECT)
@click.option("--token", is_flag=True, help="Print its registration token as well.")
@click.pass_obj
def _create(
    out: Output, program: str, model: str, hint: str | None, task: str | None, project: str | None, token: bool
) -> int:
    """Make an agent identity for a worker that is to be started."""
    from mbxctl import agents

    return agents.run_create(out, program, model, hint, task, project, token=token)


@mbxctl.command("free")
@click.argument("name")
@click.option("--reason", required=True, help="Why; kept in the log and told to the holder.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def _free(out: Output, name: str, reason: str, yes: bool) -> int:
    """Take a mailbox from its holder (people only)."""
    from mbxctl import acting

    return acting.run_free(out, name, reason, yes=yes)


@mbxctl.command("retire")
@click.argument("name")
@click.pass_obj
def _retire(out: Output, name: str) -> int:
    """Put a mailbox away on purpose (people only)."""
    from mbxctl import acting

    return acting.run_retire(out, name)


@mbxctl.command("unretire")
@click.argument("name")
@click.pass_obj
def _unretire(out: Output, name: str) -> int:
    """Bring a retired mailbox back (people only)."""
    from mbxctl import acting

    return acting.run_unretire(out, name)


@mbxctl.command("rename")
@click.argument("name")
@click.argument("to")
@click.pass_obj
def _rename(out: Output, name: str, to: str) -> int:
    """Give a mailbox another name; the old one still leads to it (people only)."""
    from mbxctl import acting

    return acting.run_rename(out, name, to)


@mbxctl.command("sweep")
@click.option("--older-than", required=True, metavar="AGE", help="How long inactive, for example 24h or 7d.")
@click.option("--project", help="Only this project: its directory or slug. By default the whole host.")
@click.option("--dry-run", is_flag=True, help="Only show what would be retired.")
@click.pass_obj
def _sweep(out: Output, older_than: str, project: str | None, dry_run: bool) -> int:
    """Retire what is vacant, idle and without mail; a claim revives it (people only)."""
    from mbxctl import agents

    return agents.run_sweep(out, older_than, project, dry_run=dry_run)


@mbxctl.group("token", cls=Group)
def _token() -> None:
    """Registration tokens of agent identities (people only)."""


@_token.command("show")
@click.argument("name")
@click.pass_obj
def _token_show(out: Output, name: str) -> int:
    """Print the token of an agent identity."""
    from mbxctl import agents

    return agents.run_token(out, name, rotate=False)


@_token.command("rotate")
@click.argument("name")
@click.pass_obj
def _token_rotate(out: Output, name: str) -> int:
    """Make the old token invalid and print the new one."""
    from mbxctl import agents

    return agents.run_token(out, name, rotate=True)


for _each in mailverbs.COMMANDS:
    mbxctl.add_command(_each)


@mbxctl.command("status")
@click.pass_obj
def _status(out: Output) -> int:
    """Show the daemon: running and installed version, and what a restart would do."""
    from mbxctl import lifecycle

    return lifecycle.run_status(out)


@mbxctl.command("start")
@click.pass_obj
def _start(out: Output) -> int:
    """Start the daemon unless it runs."""
    from mbxctl import lifecycle

    return lifecycle.run_start(out)


@mbxctl.command("stop")
@click.pass_obj
def _stop(out: Output) -> int:
    """Stop the daemon, until `start`, `restart` or a reboot."""
    from mbxctl import lifecycle

    return lifecycle.run_stop(out)


@mbxctl.command("restart")
@click.pass_obj
def _restart(out: Output) -> int:
    """Restart the daemon; every session keeps its name."""
    from mbxctl import lifecycle

    return lifecycle.run_restart(out)


@mbxctl.command("stats")
@click.pass_obj
def _stats(out: Output) -> int:
    """Show counters of the daemon's parts."""
    from mbxctl import inspecting

    return inspecting.run_stats(out)


@mbxctl.command("doctor")
@click.pass_obj
def _doctor(out: Output) -> int:
    """Check this installation; changes nothing."""
    from mbxctl import doctor

    return doctor.run_doctor(out)


@mbxctl.command("tour")
@click.pass_obj
def _tour(out: Output) -> int:
    """See it work in a few seconds, in a temporary place of its own."""
    from mbxctl import tour

    return tour.run_tour(out)


@mbxctl.group("archive", cls=Group)
def _archive() -> None:
    """The Git archive of profiles, which follows the registry."""


@_archive.command("status")
@click.pass_obj
def _archive_status(out: Output) -> int:
    """Show how far it is, and what keeps it."""
    from mbxctl import archiving

    return archiving.run_status(out)


@_archive.command("verify")
@click.pass_obj
def _archive_verify(out: Output) -> int:
    """Compare it with the registry; exits with 1 when they differ."""
    from mbxctl import archiving

    return archiving.run_verify(out)


@_archive.command("rebuild")
@click.pass_obj
def _archive_rebuild(out: Output) -> int:
    """Make it anew; the old one is set aside (people only)."""
    from mbxctl import archiving

    return archiving.run_rebuild(out)


@_archive.command("log")
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many commits.")
@click.pass_obj
def _archive_log(out: Output, name: str | None, limit: int) -> int:
    """Show commits of an identity's profile, or all."""
    from mbxctl import archiving

    return archiving.run_log(out, name, limit)


@mbxctl.group("service", cls=Group)
def _service() -> None:
    """Let systemd's user manager run the daemon."""


@_service.command("install")
@click.option("--dry-run", is_flag=True, help="Print what would be written and run.")
@click.pass_obj
def _service_install(out: Output, dry_run: bool) -> int:
    """Copy the units, and enable and start them."""
    from mbxctl import service

    return service.run_install(out, dry_run=dry_run)


@_service.command("uninstall")
@click.option("--dry-run", is_flag=True, help="Print what would be removed and run.")
@click.pass_obj
def _service_uninstall(out: Output, dry_run: bool) -> int:
    """Stop, disable and remove the units; names stay."""
    from mbxctl import service

    return service.run_uninstall(out, dry_run=dry_run)


@_service.command("status")
@click.pass_obj
def _service_status(out: Output) -> int:
    """Show whether the units are installed and running."""
    from mbxctl import service

    return service.run_status(out)
