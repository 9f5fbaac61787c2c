"""JSON Schemas of the rules between parameters, for /openapi.json. The validators of the models check the same."""

from typing import Any

from pydantic import ConfigDict

Schema = dict[str, Any]


def rules(*schemas: Schema) -> ConfigDict:
    """Returns the configuration of a model whose objects fit all schemas."""
    return ConfigDict(json_schema_extra={"allOf": list(schemas)})


def null(*params: str) -> Schema:
    """Returns the schema of an object in which the parameters are null or absent."""
    return {"properties": {param: {"type": "null"} for param in params}}


def given(param: str, schema: Schema) -> Schema:
    """Returns the schema of an object that has the parameter, with a value that fits the schema."""
    return {"properties": {param: schema}, "required": [param]}


def any_of(*schemas: Schema) -> Schema:
    """Returns the schema of an object that fits at least one of the schemas."""
    return {"anyOf": list(schemas)}


def at_most_one(unset: dict[str, Schema], alone: dict[str, Schema]) -> Schema:
    """Returns the schema of an object in which at most one parameter is set.

    Args:
        unset: for each parameter, the schema of the values that count as not set. Absent is not set.
        alone: for further parameters, the schema of the values that are allowed where one is set.
    """
    sets = [{key: unset[key] for key in unset if key != chosen} | alone for chosen in unset]
    return any_of(*({"properties": properties} for properties in (unset, *sets)))
