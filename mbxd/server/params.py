"""From JSON to params: decoding once, and clear words for what does not fit.

Owns the translation of msgspec's complaints into refusals that name the parameter, the rule and an example.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import fields, replace

from mbx_wire import schema
from mbx_wire.errors import Code
from mbxd.core import naming
from mbxd.core.rejected import Rejected

_AT = re.compile(r" - at `\$\.?([^`]*)`")
_FIELD = re.compile(r"field `([^`]*)`")
_ENUM = re.compile(r"Invalid enum value '(.*)'( - at `[^`]*`)?", re.DOTALL)


class ParamsDecoder:
    """Decodes the params of one struct. `null`, `""` and `false` count as an absent optional parameter.

    What it needs is made when it is first needed: for all methods and tools together it would take a good part of the
    daemon's start.
    """

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        """Prepare nothing yet."""
        self._kind = kind

    @cached_property
    def _decode(self) -> Callable[[bytes], msgspec.Struct]:
        return msgspec.json.Decoder(self._kind).decode

    @cached_property
    def _optional(self) -> list[str]:
        return [f.name for f in fields(self._kind) if f.default is None]

    @cached_property
    def _required(self) -> set[str]:
        return {f.encode_name for f in fields(self._kind) if f.required}

    @cached_property
    def _defaults_true(self) -> set[str]:
        """Where the default is true, `false` means something."""
        return {f.encode_name for f in fields(self._kind) if f.default is True}

    @cached_property
    def _names(self) -> list[str]:
        return [f.encode_name for f in fields(self._kind)]

    @cached_property
    def _about(self) -> dict[str, str]:
        return _descriptions(self._kind)

    def __call__(self, raw: bytes) -> msgspec.Struct:
        """The params. Raises Rejected with a PARAMETER_ code."""
        try:
            params = self._decode(raw or b"{}")
        except (msgspec.ValidationError, RecursionError) as error:
            return self._second_try(raw, error)
        except msgspec.DecodeError as error:
            raise Rejected(
                Code.PARAMETER_INVALID, f"The params are not valid JSON: {error}.", "Send a JSON object."
            ) from None
        return self._absent(params)

    def convert(self, value: dict[str, Any]) -> msgspec.Struct:
        """The same from a decoded object."""
        kept = {k: v for k, v in value.items() if not self._drops(k, v)}
        try:
            return self._absent(msgspec.convert(kept, self._kind))
        except (msgspec.ValidationError, RecursionError) as error:
            raise self._refusal(str(error)) from None

    def _drops(self, name: str, value: Any) -> bool:
        if name in self._required or (value is False and name in self._defaults_true):
            return False
        return value is None or value is False or value == ""

    def _absent(self, params: msgspec.Struct) -> msgspec.Struct:
        empty: dict[str, None] = {}
        for name in self._optional:
            value = getattr(params, name)
            if value is not None and (value is False or value == ""):
                empty[name] = None
        return replace(params, **empty) if empty else params

    def _second_try(self, raw: bytes, error: Exception) -> msgspec.Struct:
        # The slow way, for clients that send "" or false for a parameter of another type.
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            raise self._refusal(str(error)) from None
        if not isinstance(value, dict):
            raise Rejected(
                Code.PARAMETER_INVALID, f"The params must be a JSON object, not {_kind_of(value)}.", self._hint()
            )
        return self.convert(value)

    def _refusal(self, text: str) -> Rejected:
        choice = _ENUM.fullmatch(text)
        if choice is not None:  # the one complaint that repeats what was sent
            text = f"Invalid enum value {naming.shown(choice.group(1))}{choice.group(2) or ''}"
        found = _FIELD.search(text)
        if "unknown field" in text and found:
            name = found.group(1)
            return Rejected(Code.PARAMETER_UNKNOWN, f"There is no parameter {_quoted(name)}.", self._hint())
        if "missing required field" in text and found and " - at " not in text:
            name = found.group(1)
            return Rejected(
                Code.PARAMETER_MISSING,
                f"The parameter `{name}` is missing. {self._about.get(name, '')}".strip(),
                self._hint(),
            )
        at = _AT.search(text)
        name = at.group(1).split(".")[0].split("[")[0] if at else ""
        what = _AT.sub("", text)
        about = self._about.get(name, "")
        message = f"The parameter `{name}` does not fit: {what}. {about}".strip() if name else f"{what}."
        return Rejected(Code.PARAMETER_INVALID, message, self._hint(), data={"parameter": name} if name else None)

    def _hint(self) -> str:
        if not self._names:
            return "It takes no parameters."
        return f"The parameters are: {', '.join(self._names)}."


def _kind_of(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def _quoted(name: str) -> str:
    return "`" + naming.shown(name)[1:-1] + "`"


def _descriptions(kind: type[msgspec.Struct]) -> dict[str, str]:
    properties = schema.input_schema(kind).get("properties", {})
    out = {}
    for name, prop in properties.items():
        parts = [prop.get("description", "")]
        if "enum" in prop:
            parts.append(f"It is one of {', '.join(prop['enum'])}.")
        out[name] = " ".join(part for part in parts if part)
    return out
