"""The host key and the tokens made from it, at the last step before a reply leaves.

Owns the key's file. Tokens are never part of a result that is logged or kept: they are added here.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

import msgspec
from msgspec.structs import replace

from mbx_wire.agent import AgentResult, CreateAgentParams, TokenParams, TokenResult
from mbxd.core import tokens
from mbxd.ground import Unfit
from mbxd.ownfile import open_own
from mbxd.server.services import Services

_agent = msgspec.json.Decoder(AgentResult).decode
_token = msgspec.json.Decoder(TokenResult).decode


def load_key(path: str) -> bytes:
    """The host key; made when there is none. Raises Unfit for a file that others could read or that is cut short."""
    try:
        fd = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return _make_key(path)
    with os.fdopen(fd, "rb") as file:
        found, key = os.fstat(file.fileno()), file.read(tokens.KEY_BYTES + 1)
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise Unfit(f"{path} can be read by others: chmod 600 it; then rotate the tokens")
    if len(key) != tokens.KEY_BYTES:
        raise Unfit(
            f"{path} has {len(key)} bytes instead of {tokens.KEY_BYTES}: "
            "restore it, or remove it to make all tokens new"
        )
    return key


def _make_key(path: str) -> bytes:
    """Written beside and renamed, so that a crash leaves a whole key or none."""
    key = os.urandom(tokens.KEY_BYTES)
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a start that was cut short
    fd = open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, key)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return key


def add(result: Any, params: msgspec.Struct, services: Services) -> Any:
    """The result with its token, where one was asked for."""
    match params:
        case CreateAgentParams(return_registration_token=True):
            agent = _agent(result) if isinstance(result, msgspec.Raw) else result
            return replace(agent, registration_token=_mint(agent.id, services))
        case TokenParams():
            shown = _token(result) if isinstance(result, msgspec.Raw) else result
            return replace(shown, registration_token=_mint(shown.id, services))
        case _:
            return result


def _mint(identity: int, services: Services) -> str:
    return tokens.mint(services.key, identity, services.engine.state.identities[identity].generation)
