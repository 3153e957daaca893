"""Schemas of payloads: columns and rules from a dataclass, a pydantic model or a JSON Schema."""

from __future__ import annotations

import datetime
import enum
import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import pydantic
import pytest

from millstream.errors import ConfigError, MalformedPayload
from millstream.spark.pipeline.schemas import table_of


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    name: str
    price: float


@dataclass
class Order:
    order: int
    at: datetime.datetime
    items: list[Item]
    size: Size = Size.SMALL
    tags: dict[str, int] = field(default_factory=dict)
    note: str | None = None
    way: Literal["post", "hand"] = "post"


class Model(pydantic.BaseModel):
    order: int
    quantity: int = pydantic.Field(gt=0)


class Typed(TypedDict):
    order: int
    country: str


JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["order", "country"],
    "additionalProperties": False,
    "properties": {
        "order": {"type": "integer", "minimum": 1},
        "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
        "total": {"type": ["number", "null"], "exclusiveMinimum": 0},
        "way": {"enum": ["post", "hand"]},
        "items": {
            "type": "array",
            "maxItems": 2,
            "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
        },
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def test_a_dataclass_names_the_columns_and_its_payloads_become_rows() -> None:
    table = table_of(Order)
    assert dict(table.columns) == {
        "order": "bigint",
        "at": "timestamp",
        "items": "array<struct<`name`:string,`price`:double>>",
        "size": "string",
        "tags": "map<string,bigint>",
        "note": "string",
        "way": "string",
    }
    items = [{"name": "tea", "price": 1.5}]
    payload = {"order": 7, "at": "2026-03-02T10:00:00+00:00", "items": items, "tags": {"a": 1}}
    row = table.read(json.dumps(payload).encode())
    assert row["order"] == 7
    assert row["items"] == [{"name": "tea", "price": 1.5}]
    assert (row["size"], row["tags"], row["note"], row["way"]) == ("s", {"a": 1}, None, "post")
    assert row["at"] == datetime.datetime(2026, 3, 2, 10, tzinfo=datetime.UTC)


@pytest.mark.parametrize("schema", [Model, Typed, Order], ids=lambda schema: schema.__name__)
@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff", b'{"order": "seven"}', b"null", b'{"order": 1e400}'])
def test_what_is_no_such_payload_is_malformed_and_nothing_else(schema: Any, payload: bytes) -> None:
    with pytest.raises(MalformedPayload):
        table_of(schema).read(payload)


def test_a_model_checks_its_own_rules() -> None:
    table = table_of(Model)
    assert table.columns == (("order", "bigint"), ("quantity", "bigint"))
    assert table.read(b'{"order": 1, "quantity": 2}') == {"order": 1, "quantity": 2}
    with pytest.raises(MalformedPayload):
        table.read(b'{"order": 1, "quantity": 0}')


def test_a_json_schema_names_the_columns() -> None:
    table = table_of(JSON_SCHEMA)
    assert dict(table.columns) == {
        "order": "bigint",
        "country": "string",
        "total": "double",
        "way": "string",
        "items": "array<struct<`n`:bigint>>",
        "tags": "map<string,string>",
    }
    assert table.read(b'{"order": 1, "country": "DE", "total": 3}') == {
        "order": 1,
        "country": "DE",
        "total": 3.0,
        "way": None,
        "items": None,
        "tags": None,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"order": 0}, "data.order: must be at least 1"),
        ({"order": "1"}, "data.order: must be of type integer"),
        ({"order": True}, "data.order: must be of type integer"),
        ({"order": 1 << 63}, "data.order: must be of type integer"),
        ({"country": "Germany"}, "data.country: must match"),
        ({"total": 0}, "data.total: must be above 0"),
        ({"way": "air"}, "data.way: must be one of post, hand"),
        ({"items": [{"n": 1}, {"m": 2}]}, "data.items[1].n: is missing"),
        ({"items": [{"n": 1}] * 3}, "data.items: must have 2 items or less"),
        ({"tags": {"a": 1}}, "data.tags.a: must be of type string"),
        ({"more": 1}, "data: has parts that the schema does not name"),
    ],
)
def test_a_broken_rule_is_named_with_its_place_and_without_the_value(change: dict[str, Any], words: str) -> None:
    payload = json.dumps({"order": 1, "country": "DE"} | change).encode()
    with pytest.raises(MalformedPayload) as caught:
        table_of(JSON_SCHEMA).read(payload)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array"}, "type object"),
        ({"properties": {"a": {"type": "string", "oneOf": []}}}, "oneOf"),
        ({"properties": {"a": {"$ref": "#/x"}}}, "needs one type"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "needs one type"),
        (int, "names no columns"),
        ("Order", "names no columns"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused_at_once(schema: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        table_of(schema)
