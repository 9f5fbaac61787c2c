"""Closes the objects of a JSON Schema: a model may write only the properties that the schema names.

JSON Schema allows further properties unless `additionalProperties` forbids them. A weak model then invents properties
and never ends. vLLM's grammar backend (xgrammar, strict mode) closes objects as well.
"""

from collections.abc import Mapping
from typing import Any

VALUES = {"enum", "const", "default", "examples", "required"}  # keywords whose values are no schemas
BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}  # name -> schema
# With one of these, a property may be named elsewhere.
OPEN = {"additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}


def close_objects(schema: Any, is_part: bool = False) -> Any:
    """Returns a copy in which objects with `properties` allow no other ones, unless the schema says so.

    Args:
        schema: the JSON Schema.
        is_part: True for a part of `allOf`, whose other parts may name further properties.
    """
    if isinstance(schema, list):
        return [close_objects(part, is_part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, Mapping):
            closed[key] = {name: close_objects(part) for name, part in value.items()}
        else:
            closed[key] = value if key in VALUES else close_objects(value, key == "allOf")
    if isinstance(schema.get("properties"), Mapping) and not is_part and not OPEN & schema.keys():
        closed["additionalProperties"] = False
    return closed
