"""Objects allow only the properties that their schema names, wherever the schema leaves it open."""

import pytest

from eyas.chat.json_schema import close_objects

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
        (True, True),
    ],
)
def test_closed(schema, closed):
    before = repr(schema)
    assert close_objects(schema) == closed
    assert repr(schema) == before
