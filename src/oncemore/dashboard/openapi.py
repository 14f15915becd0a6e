"""The OpenAPI document of the JSON API, made from the table of routes and the fields of the records."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from oncemore._version import __version__
from oncemore.dashboard.actions import ACTIONS
from oncemore.dashboard.api import API_ROUTES

if TYPE_CHECKING:
    from oncemore.dashboard.actions import ActionField, DashboardAction
    from oncemore.dashboard.api import ApiRoute

#: JSON types of annotations; a type that is not here may be any JSON value.
SIMPLE_TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "dict[str, Any]": {"type": "object"},
    "tuple[str, ...]": {"type": "array", "items": {"type": "string"}},
    "list[str]": {"type": "array", "items": {"type": "string"}},
    "dict[str, int]": {"type": "object"},
}
FIELD_TYPES = {"text": {"type": "string"}, "number": {"type": "integer"}, "json": {}}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
    },
}
#: The statuses of refusals: of a read, and of a change.
READ_ERRORS = ("400", "401", "403", "404", "503")
CHANGE_ERRORS = ("400", "401", "403", "404", "409", "413", "503")
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


def build_document(root: str = "") -> dict[str, Any]:
    """Return the OpenAPI document; `root` is the path at which the dashboard is mounted."""
    paths = {f"/api{route.path}": {"get": _describe_route(route)} for route in API_ROUTES}
    paths |= {f"/api/actions/{name}": {"post": _describe_action(action)} for name, action in ACTIONS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "oncemore dashboard", "version": __version__},
        "servers": [{"url": root or "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": ERROR_SCHEMA,
                **{route.record.__name__: describe_record(route.record) for route in API_ROUTES},
            },
        },
    }


def describe_record(record: type) -> dict[str, Any]:
    """Return the JSON Schema of a record from the annotations of its fields."""
    # Annotations are strings here: many of their types are imported for the type checker alone.
    notes = {name: str(note) for name, note in record.__annotations__.items()}
    fields = getattr(record, "_fields", ())
    return {
        "type": "object",
        "required": list(fields),
        "properties": {name: describe_annotation(notes.get(name, "")) for name in fields},
    }


def describe_annotation(annotation: str) -> dict[str, Any]:
    """Return the JSON Schema of an annotation; an empty one, for every value, if it is not simple."""
    parts = [part.strip() for part in annotation.split("|")]
    known = [SIMPLE_TYPES.get(part) for part in parts if part != "None"]
    if not known or None in known:
        return {}
    # Infinite numbers are sent as null, because JSON does not have them.
    is_nullable = "None" in parts or "float" in parts
    schemas = [schema for schema in known if schema is not None]
    if len(schemas) == 1 and not is_nullable:
        return schemas[0]
    return {"anyOf": [*schemas, *([{"type": "null"}] if is_nullable else [])]}


def _describe_route(route: ApiRoute) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{route.record.__name__}"}
    schema = {"type": "array", "items": reference} if route.is_list else reference
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(route.path)
    ]
    parameters += [
        {
            "name": each.name,
            "in": "query",
            "required": False,
            "description": each.meaning,
            "schema": {"type": each.kind, "minimum": 1} if each.kind == "integer" else {"type": each.kind},
        }
        for each in route.parameters
    ]
    return {
        "summary": route.summary,
        "operationId": "get" + route.path.title().replace("/", "").replace("{", "By").replace("}", ""),
        "parameters": parameters,
        "responses": {
            "200": {"description": route.summary, "content": {"application/json": {"schema": schema}}},
            **_describe_errors(READ_ERRORS),
        },
    }


def _describe_action(action: DashboardAction) -> dict[str, Any]:
    message = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
    return {
        "summary": action.summary,
        "description": f"Needs the role {action.needed_role}.",
        "operationId": "do" + action.name.title().replace("-", ""),
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": [field.name for field in action.fields if field.is_required],
                        "properties": {field.name: _describe_field(field) for field in action.fields},
                    }
                }
            },
        },
        "responses": {
            "200": {"description": "done", "content": {"application/json": {"schema": message}}},
            **_describe_errors(CHANGE_ERRORS),
        },
    }


def _describe_field(field: ActionField) -> dict[str, Any]:
    return {**FIELD_TYPES[field.kind], "description": field.meaning}


def _describe_errors(statuses: tuple[str, ...]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        status: {"description": "refused; the message says why", "content": content} for status in statuses
    }
