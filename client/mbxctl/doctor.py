"""`mbxctl doctor`: what is wrong with this installation, and the exact way to mend it.

Owns the order of the checks and how findings are shown. Reads only: no daemon is started, nothing is created
or touched. The checks themselves are in `checks`.
"""

from __future__ import annotations

from typing import Any

from mbx_wire.errors import EXIT_FAILURE
from mbxctl import checks
from mbxctl.checks import Finding
from mbxctl.render import Output


def run_doctor(out: Output) -> int:
    """Run every check. Exits 1 when one failed; a daemon that is merely not running is no failure."""
    findings = checks.run_all()
    failed = sum(1 for finding in findings if finding.level == "fail")
    if out.json:
        out.document({"ok": failed == 0, "checks": [finding._asdict() for finding in findings]})
    else:
        _show(out, findings)
        _sum_up(out, findings)
    return EXIT_FAILURE if failed else 0


def _show(out: Output, findings: list[Finding]) -> None:
    if out.is_terminal:
        from mbxctl import pretty

        out.drawn(pretty.checks([(finding.level, finding.check, _words(finding)) for finding in findings]))
        return
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        out.data(f"{finding.level:<4}  {finding.check:<{width}}  {_words(finding)}")


def _words(finding: Finding) -> str:
    return f"{finding.message} -> {finding.fix}" if finding.fix else finding.message


def _sum_up(out: Output, findings: list[Finding]) -> None:
    counts: dict[str, Any] = {}
    for finding in findings:
        counts[finding.level] = counts.get(finding.level, 0) + 1
    out.talk(", ".join(f"{counts[level]} {level}" for level in ("fail", "warn", "note", "ok") if level in counts))
