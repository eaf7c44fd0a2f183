"""Words for a daemon and a client of two versions."""

from __future__ import annotations

import pytest

from mbx_wire.errors import Code
from mbxd.core.rejected import Rejected
from mbxd.server.skew import Skew, between


@pytest.mark.parametrize("client", ["", "0.1.0"])
def test_no_difference(client: str) -> None:
    assert between("0.1.0", client) is None


@pytest.mark.parametrize(
    ("daemon", "client", "newer"),
    [
        ("0.1.0", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("1.0", "1.0.1", True),
        ("0.2.0", "0.1.9", False),
        ("0.1.0", "unknown", False),
    ],
)
def test_the_older_side_is_renewed(daemon: str, client: str, newer: bool) -> None:
    skew = between(daemon, client)
    assert skew is not None
    assert ("mbxctl restart" in skew.hint, "restart your agent CLI" in skew.hint) == (newer, not newer)
    typed = between(daemon, client, command_line=True)
    assert typed is not None
    assert ("mbxctl restart" in typed.hint, f"the mbxctl of mbxd {daemon}" in typed.hint) == (newer, not newer)
    assert "agent CLI" not in typed.hint
    body = skew.body("There is no method x.")
    assert (body["code"], body["retryable"]) == ("VERSION_SKEW", False)
    assert body["data"] == {"daemon": daemon, "client": client}
    assert body["message"].startswith("There is no method x. ")


def test_only_what_is_unknown_is_put_down_to_versions() -> None:
    skew = Skew("0.1.0", "0.2.0")
    taken = Rejected(Code.NAME_TAKEN, "It is taken.", "Take another.", data={"project": "shop"})
    assert skew.told(taken) is taken
    unknown = skew.told(Rejected(Code.PARAMETER_UNKNOWN, "There is no parameter `x`.", "The parameters are: y."))
    assert unknown.code == Code.PARAMETER_UNKNOWN
    assert unknown.hint.startswith("The parameters are: y.")
    assert unknown.hint.endswith("Run: mbxctl restart")
