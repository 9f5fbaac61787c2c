"""Objects allow only the properties that their schema names, and numbers between limits end."""

import pytest

from eyas.chat.json_schema import bound_schema

NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**NAMED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (NAMED, CLOSED),
        (
            {"properties": {"x": NAMED}, "additionalProperties": True},
            {"properties": {"x": CLOSED}, "additionalProperties": True},
        ),
        ({"type": "array", "items": NAMED}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [NAMED, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        (
            {"$defs": {"properties": NAMED}, "$ref": "#/$defs/properties"},
            {"$defs": {"properties": CLOSED}, "$ref": "#/$defs/properties"},
        ),
        ({"allOf": [NAMED, {"properties": {"b": NAMED}}]}, {"allOf": [NAMED, {"properties": {"b": CLOSED}}]}),
        (
            {"properties": {"a": True}, "patternProperties": {"^x": NAMED}},
            {"properties": {"a": True}, "patternProperties": {"^x": CLOSED}},
        ),
        ({"type": "object"}, {"type": "object"}),
        ({"enum": [NAMED], "default": NAMED}, {"enum": [NAMED], "default": NAMED}),
        ({"properties": {"enum": NAMED}}, {"properties": {"enum": CLOSED}, "additionalProperties": False}),
        ({"type": "number", "minimum": 0}, {"type": "number", "minimum": 0}),
        (
            {"type": "number", "minimum": 0, "maximum": 1},
            {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 1e-9},
        ),
        (
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-8},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-8},
        ),
        (
            {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.5},
            {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.5},
        ),
        (True, True),
    ],
)
def test_closed(schema, closed):
    before = repr(schema)
    assert bound_schema(schema) == closed
    assert repr(schema) == before
