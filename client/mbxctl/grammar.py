"""What every command and group of mbxctl has in common, in click. Never names a command."""

from __future__ import annotations

from typing import Any

import click


class MissingCommand(click.UsageError):
    """A group was named without a command."""


def _json_option() -> click.Option:
    # The flag is found before parsing (main), so that parse errors honour it too; here it is only accepted.
    return click.Option(["--json"], is_flag=True, expose_value=False, help="Print exactly one JSON document.")


class Command(click.Command):
    """A command that accepts --json."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_json_option())


class Group(click.Group):
    """A group whose commands accept --json, listed in the order in which they are declared."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["no_args_is_help"] = False
        super().__init__(*args, **kwargs)
        self.params.append(_json_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with an error of its own when no command follows."""
        command_follows = any(not arg.startswith("-") for arg in args)
        rest = super().parse_args(ctx, args)
        if not command_follows:
            raise MissingCommand("which command?", ctx)
        return rest

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Looking, acting, people's levers, the daemon: not the alphabet."""
        del ctx
        return list(self.commands)
