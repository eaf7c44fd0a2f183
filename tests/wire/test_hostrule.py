"""Which process of a chain is the host of a session."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbx_wire.hostrule import (
    Process,
    agent_label,
    choose_host,
    is_border,
    is_wrapper,
    label,
    program,
)

ME = 1000


def process(line: str, *, pid: int = 100, uid: int = ME, exe: str = "") -> Process:
    return Process(pid, uid, tuple(shlex.split(line)), exe)


def chain(*lines: str, init: bool = True) -> list[Process]:
    """A shim and its ancestors, nearest first, pid 1 at the end."""
    found = [process(line, pid=500 - i) for i, line in enumerate(("/usr/bin/python /venv/bin/mbx-mcp", *lines))]
    return [*found, Process(1, 0, ("/sbin/init",), "")] if init else found


CHAINS = [
    ("direct child", ["claude"], 1, "claude-code"),
    ("sh -c", ["/bin/sh -c mbx-mcp", "codex"], 2, "codex"),
    ("uvx", ["uvx mbx-mcp", "opencode"], 2, "opencode"),
    ("sh -c uvx", ["/root/.local/bin/uvx mbx-mcp", "sh -c 'uvx mbx-mcp'", "claude"], 3, "claude-code"),
    ("uv run", ["uv run --directory /x mbx-mcp", "claude --resume"], 2, "claude-code"),
    ("uv tool run beneath env and timeout", ["uv tool run mbx-mcp", "timeout 60 uv", "env A=1 x", "codex"], 4, "codex"),
    ("pipx is a script", ["/usr/bin/python3 /usr/bin/pipx run mbx-mcp", "goose"], 2, "goose"),
    ("python -m pipx", ["python3.12 -Im pipx run mbx-mcp", "goose"], 2, "goose"),
    ("npx by its title", ["sh -c mbx-mcp", '"npm exec @scope/codex"', "node /x/agent.js"], 3, "agent"),
    ("npx by its title, split", ["npm exec @scope/codex", "node /x/agent.js"], 2, "agent"),
    ("npx by its script", ["node /usr/lib/node_modules/npm/bin/npx-cli.js -y mbx-mcp", "claude"], 2, "claude-code"),
    ("npm run", ["node /usr/lib/node_modules/npm/bin/npm-cli.js run mcp", "claude"], 2, "claude-code"),
    ("pnpm dlx", ["node /usr/bin/pnpm.cjs dlx mbx-mcp", "claude"], 2, "claude-code"),
    ("bun x", ["bun x mbx-mcp", "claude"], 2, "claude-code"),
    ("bun run runs in its own process", ["bun run /x/agent.ts", "claude"], 1, "agent.ts"),
    ("setsid and nice", ["setsid -w mbx-mcp", "nice -n 5 setsid", "claude"], 3, "claude-code"),
    ("tini", ["tini -- mbx-mcp", "claude"], 2, "claude-code"),
    ("a script", ["bash ./start-mcp.sh", "claude"], 2, "claude-code"),
    ("a script with options", ["bash -euo pipefail /x/start.sh", "claude"], 2, "claude-code"),
    ("an interactive shell", ["-bash", "sshd: me@pts/0"], 1, "bash"),
    ("an interactive shell with options", ["zsh -l -i", "claude"], 1, "zsh"),
    ("an interactive bash with an option's value", ["bash -o vi", "claude"], 1, "bash"),
    ("a shell reading its input", ["sh -s", "claude"], 1, "sh"),
    ("interactive fish", ["fish -C 'set x 1'", "claude"], 1, "fish"),
    ("fish -c", ["fish --command=mbx-mcp", "claude"], 2, "claude-code"),
    ("busybox", ["busybox sh -c mbx-mcp", "busybox timeout 5 sh", "crush"], 3, "crush"),
    ("busybox, interactive", ["busybox sh", "crush"], 1, "sh"),
    ("an unknown program is a host too", ["/opt/my-agent --serve", "claude"], 1, "my-agent"),
    ("python -c", ["python3 -c 'import agent'", "bash"], 1, "python3"),
    ("a node agent", ["node /usr/lib/node_modules/@google/gemini-cli/dist/index.js", "node x"], 1, "gemini-cli"),
    (
        "claude from npm",
        ["node --max-old-space-size=8192 /n/node_modules/@anthropic-ai/claude-code/cli.js"],
        1,
        "claude-code",
    ),
    ("claude by its version", ["/home/me/.local/share/claude/versions/2.1.332 --print"], 1, "claude-code"),
    ("tmux ends the walk: outermost wrapper", ["uvx mbx-mcp", "sh -c 'uvx mbx-mcp'", "tmux new -s x"], 2, "sh"),
    ("tmux ends the walk: the shim", ["tmux: server", "claude"], 0, "mbx-mcp"),
    ("sshd ends the walk", ["sh -c mbx-mcp", "sshd: me@pts/0", "claude"], 1, "sh"),
    ("sshd, argv split", ["sh -c mbx-mcp", "'sshd:' me@notty"], 1, "sh"),
    ("screen ends the walk", ["SCREEN -S x", "claude"], 0, "mbx-mcp"),
    ("login", ["login -p --", "claude"], 0, "mbx-mcp"),
    ("a service manager", ["sh -c mbx-mcp", "/lib/systemd/systemd --user"], 1, "sh"),
    ("a container shim", ["mbx-wrapper", "/usr/bin/containerd-shim-runc-v2 -id 5"], 1, "mbx-wrapper"),
    ("an orphan", [], 0, "mbx-mcp"),
    ("an orphan in wrappers", ["timeout 5 x", "sh -c y"], 2, "sh"),
    ("a name with a colon is no border by accident", ["agent:tmux", "claude"], 1, "agent:tmux"),
]


@pytest.mark.parametrize(("lines", "place", "name"), [row[1:] for row in CHAINS], ids=[row[0] for row in CHAINS])
def test_chain(lines: list[str], place: int, name: str) -> None:
    choice = choose_host(chain(*lines))
    assert (choice.place, choice.label) == (place, name)


def test_another_users_process_ends_the_walk() -> None:
    found = chain("sh -c mbx-mcp", "claude")
    found[2].uid = ME + 1
    assert choose_host(found).place == 1


def test_a_parent_with_pid_1_in_a_container_is_no_host_and_no_death() -> None:
    assert choose_host([process("mbx-mcp"), Process(1, ME, ("claude",), "")]).place == 0


def test_a_chain_that_breaks_off_is_used_as_far_as_it_goes() -> None:
    assert choose_host(chain("sh -c x", init=False)).place == 1
    assert choose_host(chain(init=False)).place == 0


def test_what_can_not_be_read_is_taken_for_a_program() -> None:
    silent = Process(400, ME, (), "")
    assert not is_wrapper(silent)
    assert not is_border(silent)
    assert choose_host([process("mbx-mcp"), silent]).label == "unknown"


def test_exe_speaks_where_argv_is_empty() -> None:
    assert is_wrapper(Process(400, ME, (), "/usr/bin/uvx"))
    assert is_border(Process(400, ME, ("",), "/usr/bin/tmux (deleted)"))


def test_a_folder_with_spaces_is_no_title() -> None:
    exe = "/Applications/My Apps/claude"
    assert program(Process(400, ME, (exe,), exe)) == "claude"
    assert program(Process(400, ME, tuple(exe.split()), exe)) == "claude"


def test_a_title_with_arguments_tells_only_the_program() -> None:
    titled = process("'myagent --token hunter2 --url https://me:pw@host/x'")
    assert label(titled) == "myagent"


def test_a_project_folder_named_like_an_agent_is_no_agent() -> None:
    assert agent_label(process("node /home/me/gemini/dist/index.js")) is None
    assert agent_label(process("python3 /home/me/claude/main.py")) is None


def test_labels_are_printable_and_short() -> None:
    assert label(process("'\x1b[2Jevil'")) == "?[2jevil"
    assert len(label(process("x" * 500))) == 40
    assert label(Process(4, ME, ("\udcff\udcfe",), "")) == "??"
    assert label(Process(4, ME, (), "/opt/Agent Shell")) == "agent-shell"
    assert label(Process(4, ME, (), " ")) == "unknown"


words = st.text(st.sampled_from("/: -\n()\x1b\udcffacmosx.é") | st.characters(), max_size=12)
processes = st.builds(
    Process, st.integers(0, 9), st.sampled_from([0, ME]), st.lists(words, max_size=5).map(tuple), words
)


@given(st.lists(processes, min_size=1, max_size=6))
def test_any_chain_gets_a_host_below_every_border(found: list[Process]) -> None:
    choice = choose_host(found)
    assert 0 <= choice.place < len(found)
    assert choice.label.isprintable()
    assert " " not in choice.label
    for above in found[1 : choice.place + 1]:
        assert above.uid == found[0].uid
        assert above.pid > 1
        assert not is_border(above)
    for between in found[1 : choice.place]:
        assert is_wrapper(between)


@given(processes)
def test_a_program_is_one_lower_case_word(found: Process) -> None:
    name = program(found)
    assert name == name.lower() or not name.isascii()
