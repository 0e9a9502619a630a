"""Values made up from a JSON Schema."""

from __future__ import annotations

from typing import Any


def sample(schema: dict[str, Any], defs: dict[str, Any] | None = None) -> Any:
    """A small value that fits a JSON Schema: defaults and enums where given, empty or zero elsewhere."""
    defs = schema.get("$defs", {}) if defs is None else defs
    if "$ref" in schema:
        return sample(defs[schema["$ref"].rsplit("/", 1)[1]], defs)
    for given in ("default", "const"):
        if given in schema:
            return schema[given]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return sample(schema["anyOf"][0], defs)
    if schema.get("type") == "object":
        required = schema.get("required", [])
        return {name: sample(part, defs) for name, part in schema.get("properties", {}).items() if name in required}
    if schema.get("type") == "array":
        first = [sample(part, defs) for part in schema.get("prefixItems", [])]
        more = int(schema.get("minItems", 0)) - len(first)
        return first + [sample(schema.get("items") or {}, defs) for _ in range(more)]
    return {"string": "", "integer": 0, "number": 0.0, "boolean": False}.get(str(schema.get("type")))
