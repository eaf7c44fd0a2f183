"""JSON Schema of the wire structs, in the plain form that MCP clients understand: one object, no `$ref`.

Owns the flattening of msgspec's schema output. Nulls are dropped from input schemas: a client that sends
null for an optional parameter is accepted all the same, but several model APIs refuse type arrays.
"""

from __future__ import annotations

from typing import Any

import msgspec


def input_schema(params: type[msgspec.Struct]) -> dict[str, Any]:
    """An object schema for a tool's arguments."""
    schema = struct_schema(params)
    properties = {name: _input_property(prop) for name, prop in schema["properties"].items()}
    out: dict[str, Any] = {"type": "object"}
    if properties:
        out["properties"] = properties
    if schema.get("required"):
        out["required"] = schema["required"]
    out["additionalProperties"] = False
    return out


def output_schema(results: tuple[type[msgspec.Struct], ...], error: dict[str, Any]) -> dict[str, Any]:
    """An object schema that every success and the error object fit.

    The root must be an object with properties, so the variants are merged: a property is required only when
    every variant and the error have it, which leaves none.
    """
    properties: dict[str, Any] = {}
    for result in results:
        for name, prop in struct_schema(result)["properties"].items():
            if name in properties and properties[name] != prop:
                properties[name] = _either(properties[name], prop)
            else:
                properties[name] = prop
    properties["error"] = error
    return {"type": "object", "properties": properties}


def struct_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The whole schema of a struct, with references resolved."""
    (root,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    resolved: dict[str, Any] = _resolve(root, components)
    return resolved


def _resolve(node: Any, components: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_resolve(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _resolve(components[node["$ref"].rsplit("/", 1)[-1]], components)
    # Struct docstrings and titles are for readers of the source; they would cost the agent's context.
    keep = {k: v for k, v in node.items() if k != "title" and not (k == "description" and "properties" in node)}
    out = {}
    for key, value in keep.items():
        out[key] = (
            {n: _resolve(p, components) for n, p in value.items()}
            if key == "properties"
            else _resolve(value, components)
        )
    return _simplify(out)


def _simplify(node: dict[str, Any]) -> dict[str, Any]:
    options = node.get("anyOf")
    if options and any(option == {} for option in options):
        # A pre-encoded member (Raw) is documented by its struct sibling.
        kept = [option for option in options if option != {}]
        node = {**node, "anyOf": kept} if len(kept) > 1 else kept[0]
    return node


def _input_property(prop: dict[str, Any]) -> dict[str, Any]:
    out = {k: v for k, v in prop.items() if k not in {"default", "anyOf"}}
    for option in prop.get("anyOf", ()):
        if option.get("type") != "null":
            out = {**option, **out}
    if "enum" in out:
        out["type"] = "string"
    return out


def _either(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    if set(a) == {"enum"} and set(b) == {"enum"}:
        return {"enum": sorted({*a["enum"], *b["enum"]})}
    left = a.get("anyOf", [a])
    return {"anyOf": [*left, *(option for option in b.get("anyOf", [b]) if option not in left)]}
