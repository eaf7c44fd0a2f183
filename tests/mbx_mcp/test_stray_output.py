"""Whatever else prints in the shim's process or beneath it does not get into the protocol's stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.shim_process import call, environment, initialize, request
from tests.support.stub_daemon import StubDaemon

NOISY = """
import os, sys
from mbx_mcp import bridge, main
submit = bridge.Bridge.submit
def noisy(self, *more):
    print("a stray print", flush=True)
    os.write(1, b"a stray write\\n")
    os.system("echo a stray child; cat > /dev/null")
    return submit(self, *more)
bridge.Bridge.submit = noisy
sys.argv = ["mbx-mcp"]
main.main()
"""


def test_stdout_has_the_protocol_alone_and_stdin_is_the_protocols(daemon: StubDaemon, state: Path) -> None:
    lines = [initialize(), call(request_id=1), call(request_id=2), request("ping", request_id=3)]
    done = subprocess.run(
        [sys.executable, "-c", NOISY],
        env=environment(state),
        input=b"".join(json.dumps(line).encode() + b"\n" for line in lines),
        capture_output=True,
        timeout=30,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert {answer["id"] for answer in answers} == {0, 1, 2, 3}
    assert all(answer["jsonrpc"] == "2.0" and "result" in answer for answer in answers)
    for what in (b"a stray print", b"a stray write", b"a stray child"):
        assert done.stderr.count(what) == 2
