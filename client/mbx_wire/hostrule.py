"""Which ancestor of a shim is the host process of its session. Pure, standard library only.

Owns the tables of wrappers, borders and known agent CLIs, and the one rule that the daemon and the shim
both apply to a chain of processes. Never looks at the machine: the caller brings the chain.

The rule: walking up from the shim's parent, the host is the first process that is not a wrapper. The walk
ends at a border (pid 1, a subreaper such as a service manager or container shim, a terminal multiplexer,
sshd, login, another uid): then the outermost wrapper is the host, or the shim itself when there is none.
Processes are judged by argv and exe, never by comm, which anyone may set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Process(NamedTuple):
    """One process of a chain. `argv` and `exe` are empty when they could not be read."""

    pid: int
    uid: int
    argv: tuple[str, ...]
    exe: str


class Choice(NamedTuple):
    """Place of the host in the chain (0 is the shim itself), a label for it, and why it was chosen."""

    place: int
    label: str
    why: str


WRAPPERS = frozenset(
    {"env", "timeout", "nice", "ionice", "chrt", "setsid", "nohup", "stdbuf", "tini", "tini-static"}
    | {"dumb-init", "uv", "uvx", "pipx", "npx", "pnpx", "bunx"},
)
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "ash", "busybox"})
BORDERS = frozenset(
    {
        "systemd",
        "init",
        "launchd",
        "containerd-shim",
        "containerd-shim-runc-v2",
        "conmon",
        "runsv",
        "runsvdir",
    }
    | {"s6-supervise", "s6-svscan", "supervisord", "tmux", "screen", "zellij", "dtach", "abduco"}
    | {"sshd", "sshd-session", "login", "mosh-server", "su", "sudo", "doas", "cron", "crond", "relay"},
)
KNOWN_AGENTS: dict[str, str] = {
    "claude": "claude-code",
    "codex": "codex",
    "opencode": "opencode",
    "gemini": "gemini-cli",
    "copilot": "copilot-cli",
    "cursor-agent": "cursor-agent",
    "goose": "goose",
    "amp": "amp",
    "aider": "aider",
    "qwen": "qwen-code",
    "kimi": "kimi-cli",
    "crush": "crush",
    "droid": "droid",
}
"""Program name of an agent CLI -> label. It labels the host and never decides who it is."""

_INTERPRETERS = ("python", "node", "nodejs", "bun", "deno", "ruby", "perl")
_INTERPRETER_FLAGS_WITH_VALUE = frozenset({"-r", "--require", "--import", "-X", "-W", "--loader"})
_SHELL_FLAGS_WITH_VALUE = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})


def choose_host(chain: Sequence[Process]) -> Choice:
    """Apply the rule to a chain: index 0 is the shim, then its parent, and so on upwards."""
    uid = chain[0].uid
    for index, process in enumerate(chain[1:], start=1):
        if process.pid <= 1 or process.uid != uid or is_border(process):
            return _outermost(chain, index - 1)
        if not is_wrapper(process):
            return Choice(index, label(process), "first ancestor that is not a wrapper")
    return _outermost(chain, len(chain) - 1)


def choose_agent(chain: Sequence[Process]) -> int | None:
    """Index of the nearest ancestor that is a known agent CLI, or None. For commands run beneath an agent."""
    uid = chain[0].uid
    for index, process in enumerate(chain[1:], start=1):
        if process.pid <= 1 or process.uid != uid:
            return None
        if agent_label(process) is not None:
            return index
    return None


def is_border(process: Process) -> bool:
    """Whether the walk stops below this process."""
    name = program(process)
    if not name:
        return False
    # tmux, screen and sshd rewrite argv[0] ("tmux: server", "sshd: user@pts/0"): the word before the colon counts.
    return name in BORDERS or name.split(":", 1)[0].lower() in BORDERS


def is_wrapper(process: Process) -> bool:
    """Whether the process only starts another one: a launcher, or a shell with -c or a script."""
    name = program(process)
    if name in WRAPPERS:
        return True
    if name == "npm" or name.startswith("npm "):
        return _npm_runs(process.argv)
    if name in SHELLS:
        return _shell_runs_something(process.argv)
    return False


def label(process: Process) -> str:
    """A word for people: the agent CLI's name where it is known, else the program's name."""
    return agent_label(process) or program(process) or "unknown"


def agent_label(process: Process) -> str | None:
    """The agent CLI that this process is, or None."""
    name = program(process)
    known = KNOWN_AGENTS.get(name)
    if known is not None:
        return known
    # npm packages keep the CLI's name in the path of the script: .../@openai/codex/bin/codex.js
    return KNOWN_AGENTS.get(name.rsplit(".", 1)[0]) if "." in name else None


def program(process: Process) -> str:
    """What runs, as a bare name: the script of an interpreter, else argv[0], else the executable's name."""
    argv = process.argv
    first = _base(argv[0]).lstrip("-") if argv else ""
    exe = _base(process.exe)
    name = first or exe
    if _is_interpreter(name) or (_is_interpreter(exe) and name == exe):
        script = _script(argv)
        if script:
            return _script_name(script)
    return name.lower() if name.isascii() else name


def _outermost(chain: Sequence[Process], index: int) -> Choice:
    if index == 0:
        return Choice(0, "mbx-mcp", "no ancestor of its own before the border: the shim is its own host")
    return Choice(index, label(chain[index]), "outermost wrapper below the border")


def _base(path: str) -> str:
    return path.removesuffix(" (deleted)").rsplit("/", 1)[-1]


def _is_interpreter(name: str) -> bool:
    return name.lower().rstrip("0123456789.") in _INTERPRETERS


def _script(argv: tuple[str, ...]) -> str | None:
    skip = False
    for i, arg in enumerate(argv[1:], start=1):
        if skip:
            skip = False
        elif arg == "-m":
            return argv[i + 1] if i + 1 < len(argv) else None
        elif arg in {"-c", "-e", "--eval", "-"}:
            return None
        elif arg in _INTERPRETER_FLAGS_WITH_VALUE:
            skip = True
        elif not arg.startswith("-"):
            return arg
    return None


def _script_name(script: str) -> str:
    name = _base(script).lower()
    for suffix in (".js", ".mjs", ".cjs", ".py"):
        name = name.removesuffix(suffix)
    if name in {"npx-cli", "npm-cli"}:
        return name.removesuffix("-cli")
    if name in {"__main__", "index", "cli", "main"} and "/" in script:
        # .../@google/gemini-cli/dist/index.js: the package names the program better than the file does.
        for part in reversed(script.lower().split("/")[:-1]):
            if part.removesuffix("-cli") in KNOWN_AGENTS:
                return part.removesuffix("-cli")
    return name


def _npm_runs(argv: tuple[str, ...]) -> bool:
    words = " ".join(argv).split()
    return any(word in {"exec", "x", "run", "run-script", "npx"} for word in words[1:4])


def _shell_runs_something(argv: tuple[str, ...]) -> bool:
    skip = False
    args = argv[2:] if argv and _base(argv[0]) == "busybox" else argv[1:]
    for arg in args:
        if skip:
            skip = False
        elif arg in _SHELL_FLAGS_WITH_VALUE:
            skip = True
        elif arg.startswith("-") and not arg.startswith("--"):
            if "c" in arg:
                return True
            if "s" in arg:
                return False
        elif not arg.startswith(("-", "+")):
            return True
    return False
