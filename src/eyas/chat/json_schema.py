"""Bounds what a JSON Schema leaves open, so that a weak model ends its answer.

JSON Schema allows further properties unless `additionalProperties` forbids them, and a weak model then invents
properties for ever. So objects with properties are closed, as vLLM's grammar backend (xgrammar, strict mode) does. A
number between two limits may have any number of digits after its point; it gets at most nine.
"""

from collections.abc import Mapping
from typing import Any

VALUES = {"enum", "const", "default", "examples", "required"}  # keywords whose values are no schemas
BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}  # name -> schema
LIMITS = ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"})
SMALLEST_STEP, SMALLEST_RANGE = 1e-9, 1e-6
# With one of these, a property may be named elsewhere.
OPEN = {"additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}


def bound_schema(schema: Any, is_part: bool = False) -> Any:
    """Returns a copy that fits fewer values: objects without unnamed properties, numbers without endless digits.

    Args:
        schema: the JSON Schema.
        is_part: True for a part of `allOf`, whose other parts may name further properties.
    """
    if isinstance(schema, list):
        return [bound_schema(part, is_part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, Mapping):
            closed[key] = {name: bound_schema(part) for name, part in value.items()}
        else:
            closed[key] = value if key in VALUES else bound_schema(value, key == "allOf")
    if isinstance(schema.get("properties"), Mapping) and not is_part and not OPEN & schema.keys():
        closed["additionalProperties"] = False
    if schema.get("type") == "number" and "multipleOf" not in schema:
        low, high = (next((schema[key] for key in keys if key in schema), None) for keys in LIMITS)
        if isinstance(low, int | float) and isinstance(high, int | float) and high - low >= SMALLEST_RANGE:
            closed["multipleOf"] = SMALLEST_STEP
    return closed
