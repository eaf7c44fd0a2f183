"""Projects that are named by a parameter: a directory's absolute path, or a slug.

Owns the way from `project_key` to a project. The client looks directories up, since the daemon may not see
them; without its word a path stands for itself.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from typing import NamedTuple

from mbx_wire.agent import PROJECT_KEY_MAX, EnsureProjectParams, ProjectResult
from mbx_wire.envelope import ProjectRef
from mbx_wire.errors import Code
from mbxd.core import events as ev
from mbxd.core import naming, view
from mbxd.core.context import Context
from mbxd.core.identity import Decision
from mbxd.core.rejected import Rejected
from mbxd.core.state import State
from mbxd.core.times import iso

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Found(NamedTuple):
    """A project and the events that make it, if it is new."""

    events: list[ev.Event]
    id: int
    key: str
    slug: str
    created_at: float


def resolve(state: State, given: str, ctx: Context, parameter: str = "project_key") -> Found:
    """The project of a path or slug; a path makes one, an unknown slug is NO_PROJECT."""
    ref = _ref(state, given, ctx, parameter)
    found = state.project_by_key.get(ref.key)
    if found is not None:
        project = state.projects[found]
        return Found([], project.id, project.key, project.slug, project.created_at)
    slug = view.new_slug(state, ref.slug)
    made = ev.ProjectCreated(state.next_project, ref.key, slug, ctx.now)
    return Found([made], made.id, made.key, slug, ctx.now)


def existing(state: State, given: str, ctx: Context) -> int:
    """The id of a project that is there already; NO_PROJECT otherwise."""
    found = resolve(state, given, ctx)
    if found.events:
        raise _unknown(state, given)
    return found.id


def _ref(state: State, given: str, ctx: Context, parameter: str) -> ProjectRef:
    _check(given, parameter)
    own = ctx.caller.project
    if own is not None and given == own.key and given not in ctx.projects:
        return own  # looked up where the caller is; a slug of the same spelling may be another's
    known = state.slugs.get(given) or state.project_by_key.get(given)
    if known is not None and not given.startswith("/"):
        project = state.projects[known]
        return ProjectRef(project.key, project.slug)
    if given.startswith("/"):
        if given in ctx.projects:
            told = ctx.projects[given]
            if told is None:
                raise Rejected(
                    Code.NO_PROJECT,
                    f"{naming.shown(given)} is no project: home directories and the root directory are everybody's.",
                    "Name the directory that the agent works in.",
                )
            return told
        path = posixpath.normpath(given)
        if path in {"/", "//"}:
            raise Rejected(
                Code.NO_PROJECT, "The root directory is no project.", "Name the directory that the agent works in."
            )
        return ProjectRef(path, posixpath.basename(path))
    if own is not None and given == own.slug:
        return own
    raise _unknown(state, given)


def _unknown(state: State, given: str) -> Rejected:
    near = difflib.get_close_matches(given, list(state.slugs)[: naming.NEAR_SCANNED], n=3)
    return Rejected(
        Code.NO_PROJECT,
        f"There is no project {naming.shown(given)}." + (f" Did you mean {' or '.join(near)}?" if near else ""),
        "Give the absolute path of the project's directory, or a slug that exists.",
        data={"near": near},
    )


def _check(given: str, parameter: str) -> None:
    fault = None
    if not given.strip():
        fault = "is empty"
    elif len(given) > PROJECT_KEY_MAX:
        fault = f"has {len(given)} characters, more than {PROJECT_KEY_MAX}"
    elif _CONTROL.search(given):
        fault = "has control characters"
    elif not given.startswith("/") and ("/" in given or "\\" in given):
        fault = "is a relative path"
    else:
        naming.check_unicode(given, parameter)
    if fault is not None:
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"`{parameter}` {fault}: it must be an absolute path or a slug.",
            'For example "/home/me/shop" or "shop".',
            data={"parameter": parameter},
        )


def ensure(state: State, params: EnsureProjectParams, ctx: Context) -> Decision:
    """`project.ensure`."""
    found = resolve(state, params.human_key, ctx, "human_key")
    result = ProjectResult(
        id=found.id, slug=found.slug, human_key=found.key, created_at=iso(found.created_at), warnings=[]
    )
    return Decision(found.events, result)
