"""Entry point of `mbxctl`: the one boundary where failures become words and exit codes.

Imports as little as possible: `list` and `hook` are asked for all the time (prompts, scripts, agents' hooks), so
their plain spellings are recognised here and skip click, which costs more than everything else together.
Never holds a command's logic.
"""

from __future__ import annotations

import os
import sys

from mbx_wire.errors import EXIT_FAILURE
from mbxctl.failure import Failure
from mbxctl.render import Output

_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""128 + SIGINT and 128 + SIGPIPE, as shells report them."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = sys.argv[1:] if argv is None else argv
    _tolerate_any_text()
    before_dashes = args[: args.index("--")] if "--" in args else args
    out = Output(json="--json" in before_dashes)
    try:
        return _guarded(args, out)
    except BrokenPipeError:
        # The reader has gone (`| head`). Nothing may be written again, not even by the interpreter's exit.
        _abandon_streams()
        return _BROKEN_PIPE
    except OSError:
        # stdout takes nothing more (a full disk): that was said on stderr, and what is buffered is lost.
        _abandon_streams()
        return EXIT_FAILURE


def _guarded(args: list[str], out: Output) -> int:
    try:
        code = _run(args, out)
        out.flush()
    except Failure as failure:
        code = out.failure(failure)
    except KeyboardInterrupt:
        code = out.failure(Failure("INTERRUPTED", "interrupted", exit_code=_INTERRUPTED))
    except BrokenPipeError:
        raise
    except OSError as error:
        # Foreign errors that reach this far are the machine's: a path, a permission, a full disk.
        code = out.failure(Failure("IO_ERROR", f"{error}", "Check the path, its permissions and free space."))
    except Exception as error:
        # A bug. The promise of one JSON document holds all the same; the traceback is for its report.
        import traceback

        for line in traceback.format_exc().splitlines():
            out.talk(line)
        code = out.failure(Failure("INTERNAL", f"{type(error).__name__}: {error}", "This is a bug; please report it."))
    out.flush()
    return code


def _run(args: list[str], out: Output) -> int:
    if sys.platform == "win32":
        raise Failure("UNSUPPORTED", "mbxd runs on Linux and macOS; Windows is not supported.", "Use WSL.")
    if args[:1] == ["list"] and set(args[1:]) <= {"--all", "--json"}:
        from mbxctl import listing

        return listing.run_list(out, everything="--all" in args)
    if args[:1] == ["hook"] and not {"--help", "-h"} & set(args):
        from mbxctl import hook

        return hook.run_hook(args[1:])
    from mbxctl import cli

    return cli.run(args, out)


def _tolerate_any_text() -> None:
    """A C locale must not turn a name with an accent into a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _abandon_streams() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
