"""Which ancestor of a shim is the host process of its session. Pure, standard library only.

Owns the tables of wrappers, borders and known agent CLIs, and the one rule that the daemon and the shim
both apply to a chain of processes. Never looks at the machine: the caller brings the chain.

The rule: walking up from the shim's parent, the host is the first process that is not a wrapper. The walk
ends at a border (pid 1, a subreaper such as a service manager or container shim, a terminal multiplexer,
sshd, login, another uid): then the outermost wrapper is the host, or the shim itself when there is none.
Processes are judged by argv and exe, never by comm, which anyone may set.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` alone costs every shim most of a mebibyte
if TYPE_CHECKING:
    from collections.abc import Sequence


class Process:
    """One process of a chain. `argv` and `exe` are empty when they could not be read."""

    __slots__ = ("argv", "exe", "pid", "uid")

    def __init__(self, pid: int, uid: int, argv: tuple[str, ...], exe: str) -> None:
        self.pid = pid
        self.uid = uid
        self.argv = argv
        self.exe = exe


class Choice:
    """Place of the host in the chain (0 is the shim itself), a label for it, and why it was chosen."""

    __slots__ = ("label", "place", "why")

    def __init__(self, place: int, label: str, why: str) -> None:
        self.place = place
        self.label = label
        self.why = why


WRAPPERS = frozenset(
    {"env", "timeout", "nice", "ionice", "chrt", "setsid", "nohup", "stdbuf", "tini", "tini-static"}
    | {"dumb-init", "uv", "uvx", "pipx", "npx", "pnpx", "bunx"},
)
PACKAGE_RUNNERS = frozenset({"npm", "pnpm", "yarn"})
"""Wrappers only with a subcommand that runs something."""
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "ash", "rbash"})
BORDERS = frozenset(
    {"systemd", "init", "launchd", "containerd-shim", "containerd-shim-runc-v2", "conmon", "runsv", "runsvdir"}
    | {"s6-supervise", "s6-svscan", "supervisord", "tmux", "screen", "zellij", "dtach", "abduco"}
    | {"sshd", "sshd-session", "login", "mosh-server", "su", "sudo", "doas", "cron", "crond", "relay"},
)
KNOWN_AGENTS: dict[str, str] = {
    "claude": "claude-code",
    "claude-code": "claude-code",
    "codex": "codex",
    "opencode": "opencode",
    "gemini": "gemini-cli",
    "gemini-cli": "gemini-cli",
    "copilot": "copilot-cli",
    "cursor-agent": "cursor-agent",
    "goose": "goose",
    "amp": "amp",
    "aider": "aider",
    "qwen": "qwen-code",
    "qwen-code": "qwen-code",
    "kimi": "kimi-cli",
    "crush": "crush",
    "droid": "droid",
}
"""Name of an agent CLI's program or package -> label. It labels the host and never decides who it is."""

_INTERPRETERS = ("python", "pypy", "node", "nodejs", "bun", "deno", "ruby", "perl")
_INTERPRETER_FLAGS_WITH_VALUE = frozenset({"-r", "--require", "--import", "-X", "-W", "--loader"})
_SHELL_FLAGS_WITH_VALUE = frozenset({"-O", "+O", "--rcfile", "--init-file", "--init-command"})
_RUNNING = frozenset({"exec", "x", "run", "run-script", "dlx", "start", "test"})
_PACKAGE_FOLDERS = ("node_modules", "site-packages", "dist-packages")
_GENERIC_FILES = frozenset({"__main__", "index", "cli", "main", "start", "bin"})
_LABEL_MAX = 40


def choose_host(chain: Sequence[Process]) -> Choice:
    """Apply the rule to a chain: index 0 is the shim, then its parent, and so on upwards."""
    uid = chain[0].uid
    for index, process in enumerate(chain[1:], start=1):
        if process.pid <= 1 or process.uid != uid or is_border(process):
            return _outermost(chain, index - 1)
        if not is_wrapper(process):
            return Choice(index, label(process), "first ancestor that is not a wrapper")
    return _outermost(chain, len(chain) - 1)


def is_border(process: Process) -> bool:
    """Whether the walk stops below this process."""
    return program(process) in BORDERS


def is_wrapper(process: Process) -> bool:
    """Whether the process only starts another one: a launcher, or a shell with -c or a script."""
    name = program(process)
    if name in WRAPPERS:
        return True
    if name in PACKAGE_RUNNERS:
        # The command line of npm is one word after it set its title: "npm exec mbx-mcp".
        words = " ".join(process.argv[:6]).split()[1:]
        return any(word in _RUNNING for word in words[:4])
    return name in SHELLS and _shell_runs_something(name, process.argv)


def label(process: Process) -> str:
    """A word for people: the agent CLI's name where it is known, else the program's name. Printable, at most 40."""
    known = agent_label(process)
    if known is not None:
        return known
    word = "-".join(program(process).split())  # an executable may have spaces in its name, or nothing else
    name = "".join(char if char.isprintable() else "?" for char in word[:_LABEL_MAX])
    return name or "unknown"


def agent_label(process: Process) -> str | None:
    """The agent CLI that this process is, or None."""
    known = KNOWN_AGENTS.get(program(process))
    if known is not None:
        return known
    for path in (process.argv[0] if process.argv else "", process.exe):
        # A native build in a folder of versions: .../claude/versions/2.1.332
        parts = path.lower().split("/")
        if len(parts) > 2 and parts[-2] == "versions":
            return KNOWN_AGENTS.get(parts[-3])
    return None


def program(process: Process) -> str:
    """What runs, as a bare lower-case name: the script of an interpreter, else argv[0], else the executable's name.

    Never more than one word: a process that writes its arguments into its title tells only its name.
    """
    argv = process.argv
    name = _own_name(process)
    if name in {"bun", "deno"} and len(argv) > 1:
        if argv[1] == "x":
            return "bunx"
        argv = (argv[0], *argv[2:]) if argv[1] == "run" else argv  # runs the script in this very process
    if _is_interpreter(name):
        script = _script(argv)
        return _script_name(script) if script else name
    if name == "busybox" and len(argv) > 1 and not argv[1].startswith("-"):
        return _base(argv[1]).lower()
    return name


def _outermost(chain: Sequence[Process], at: int) -> Choice:
    if at == 0:
        return Choice(0, "mbx-mcp", "no ancestor of its own before the border: the shim is its own host")
    return Choice(at, label(chain[at]), "outermost wrapper below the border")


def _own_name(process: Process) -> str:
    """The first word of argv[0] without its folder; the executable's name where argv is empty."""
    exe = _base(process.exe)
    first = process.argv[0] if process.argv else ""
    if not first.strip():
        return exe.lower()
    if " " in process.exe and " ".join(process.argv).startswith(process.exe):
        return exe.lower()  # a folder with a space in its name, split by whoever read the command line
    word = first.split()[0]
    if word != first and "/" in word and _base(first) == exe:
        return exe.lower()
    # A title ends its first word with a colon: "tmux: server", "sshd: user@pts/0". A login shell begins with "-".
    return _base(word).rstrip(":").lstrip("-").lower()


def _base(path: str) -> str:
    return path.removesuffix(" (deleted)").rsplit("/", 1)[-1]


def _is_interpreter(name: str) -> bool:
    return name.rstrip("0123456789.") in _INTERPRETERS


def _script(argv: tuple[str, ...]) -> str | None:
    """The script or module that an interpreter runs; None when it runs code from its command line or a terminal."""
    skip = False
    for i, arg in enumerate(argv[1:], start=1):
        if skip:
            skip = False
        elif arg in _INTERPRETER_FLAGS_WITH_VALUE:
            skip = True
        elif not arg.startswith("-"):
            return arg
        elif arg == "-" or arg.startswith(("--eval", "--print")) or arg in {"-c", "-e", "-p", "-pe"}:
            return None
        elif arg[1:].isalpha() and arg[-1] in "cm" and not arg.startswith("--"):
            # Flags in one word, as in "python -Im mbx_mcp".
            return argv[i + 1] if arg[-1] == "m" and i + 1 < len(argv) else None
    return None


def _script_name(script: str) -> str:
    name = _base(script).lower()
    for suffix in (".js", ".mjs", ".cjs", ".py"):
        name = name.removesuffix(suffix)
    if name in {"npx-cli", "npm-cli"}:
        return name.removesuffix("-cli")
    parts = script.lower().split("/")[:-1]
    if name in _GENERIC_FILES and any(part in _PACKAGE_FOLDERS for part in parts):
        # .../node_modules/@google/gemini-cli/dist/index.js: the package names the program better than the file does.
        for part in reversed(parts):
            if part in _PACKAGE_FOLDERS:
                break
            if part in KNOWN_AGENTS:
                return part
    return name


def _shell_runs_something(name: str, argv: tuple[str, ...]) -> bool:
    """Whether a shell was given -c or a script; without either it is somebody's interactive shell."""
    skip = False
    for arg in argv[2:] if argv and _base(argv[0]) == "busybox" else argv[1:]:
        if skip:
            skip = False
        elif arg in _SHELL_FLAGS_WITH_VALUE or (name == "fish" and arg == "-C"):
            skip = True
        elif arg == "--command" or arg.startswith("--command="):
            return True
        elif arg.startswith("--"):
            continue
        elif arg[:1] in {"-", "+"}:
            if "c" in arg and arg[0] == "-":
                return True
            if "s" in arg and arg[0] == "-":
                return False  # reads commands from its input
            skip = arg.endswith("o")
        elif arg:
            return True
    return False
