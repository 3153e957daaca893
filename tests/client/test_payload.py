"""Payloads come back as they went, and what is not a payload is refused by name."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import pytest
from annotated_types import Gt, Interval, MinLen, Predicate, Timezone
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from millstream.client.payload import codec_for
from millstream.errors import ConfigError, MalformedPayload

Sku = NewType("Sku", str)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Address(TypedDict):
    street: str
    number: NotRequired[int]


class Loose(TypedDict, total=False):
    a: int


@dataclass(frozen=True)
class Item:
    sku: Sku
    price: Decimal
    colour: Colour | None = None


@dataclass(frozen=True)
class Order:
    id: int
    key: UUID
    at: datetime
    day: date
    items: list[Item]
    tags: dict[str, tuple[int, ...]]
    pair: tuple[int, str]
    kind: Literal["sale", "return", 3]
    size: Size
    blob: bytes
    weight: float
    where: Point
    home: Address
    days: dict[date, int]
    counts: dict[int, bool]
    hour: time
    either: int | str | None = None
    number: int | float = 0
    note: Annotated[str | None, "free text"] = None
    seen: list[str] = field(default_factory=list)


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class Flat:
    id: int
    name: str
    raw: bytes
    colour: Colour
    ratio: float = 1.0
    ok: bool = True
    note: str | None = None
    code: int | None = None
    items: list[Item] = field(default_factory=list)


@dataclass(frozen=True)
class Created:
    kind: Literal["created", "imported"]
    id: int


@dataclass(frozen=True)
class Paid:
    id: int
    amount: Decimal
    kind: Literal["paid"] = "paid"


ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Page(Generic[ItemT]):
    items: list[ItemT]
    best: ItemT | None = None


@dataclass(frozen=True)
class ItemPage(Page[Item]):
    number: Annotated[int, Gt(0)] = 1


@dataclass(frozen=True)
class Visit:
    pages: Annotated[list[Annotated[str, Field(max_length=3)]], MinLen(1)]
    rate: Annotated[float | None, Interval(ge=0, le=1)] = None


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise KeyError("odd")  # a check may raise whatever it likes


texts = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
items = st.builds(Item, sku=texts, price=decimals, colour=st.none() | st.sampled_from(Colour))
points = st.builds(Point, st.integers(), floats)
addresses = st.fixed_dictionaries({"street": texts}, optional={"number": st.integers()})
orders = st.builds(
    Order,
    id=st.integers(),
    key=st.uuids(),
    at=st.datetimes(timezones=st.sampled_from([UTC, None])),
    day=st.dates(),
    items=st.lists(items, max_size=3),
    tags=st.dictionaries(texts, st.lists(st.integers(), max_size=3).map(tuple), max_size=3),
    pair=st.tuples(st.integers(), texts),
    kind=st.sampled_from(["sale", "return", 3]),
    size=st.sampled_from(Size),
    blob=st.binary(),
    weight=floats,
    where=points,
    home=addresses,
    days=st.dictionaries(st.dates(), st.integers(), max_size=2),
    counts=st.dictionaries(st.integers(), st.booleans(), max_size=2),
    hour=st.times(),
    either=st.none() | st.integers() | texts,
    number=st.integers() | floats,
    note=st.none() | texts,
    seen=st.lists(texts, max_size=2),
)
flats = st.builds(
    Flat,
    id=st.integers(),
    name=texts,
    raw=st.binary(),
    colour=st.sampled_from(Colour),
    ratio=floats,
    ok=st.booleans(),
    note=st.none() | texts,
    code=st.none() | st.integers(),
    items=st.lists(items, max_size=2),
)

events = st.builds(Created, st.sampled_from(["created", "imported"]), st.integers()) | st.builds(
    Paid, st.integers(), decimals
)

PLAIN: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Order, orders),
    (Item, items),
    (Point, points),
    (Address, addresses),
    (bytes, st.binary()),
    (str, texts),
    (int, st.integers()),
    (float, floats),
    (bool, st.booleans()),
    (None, st.none()),
    (Any, jsons),
    (dict, st.dictionaries(texts, jsons, max_size=3)),
    (list, st.lists(jsons, max_size=3)),
    (list[Order], st.lists(orders, max_size=2)),
    (datetime | None, st.none() | st.datetimes()),
    (Created | Paid, events),
    (list[Created | Paid | int | None], st.lists(events | st.none() | st.integers())),
    (Decimal, decimals),
    (Colour, st.sampled_from(Colour)),
    (timedelta, st.timedeltas()),
    (set[int], st.sets(st.integers())),
    (frozenset[str], st.frozensets(texts)),
    (set[Colour | None], st.sets(st.none() | st.sampled_from(Colour))),
    (PurePosixPath, texts.map(PurePosixPath)),
    (Page[Item], st.builds(Page, st.lists(items, max_size=2), st.none() | items)),
    (ItemPage, st.builds(ItemPage, st.lists(items, max_size=2), st.none(), st.integers(min_value=1))),
    (list[Page[int] | None], st.lists(st.none() | st.builds(Page, st.lists(st.integers(), max_size=2)))),
    (Literal[1, True], st.sampled_from([1, True])),
    (int | list[int] | dict[str, int], st.integers() | st.lists(st.integers()) | st.dictionaries(texts, st.integers())),
]
FIELDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Flat, flats),
    (Point, points),
    (Address, addresses),
    (dict[str, str], st.dictionaries(texts, texts, min_size=1)),
    (dict[str, bytes], st.dictionaries(texts, st.binary(), min_size=1)),
    (dict[bytes, bytes], st.dictionaries(st.binary(), st.binary(), min_size=1)),
    (dict[str, str | bytes], st.dictionaries(texts, st.binary(), min_size=1)),
    (dict[str, int], st.dictionaries(texts, st.integers(), min_size=1)),
]


@pytest.mark.parametrize(("type_", "values"), PLAIN, ids=[str(case[0]) for case in PLAIN])
@settings(deadline=None)
@given(data=st.data())
def test_a_value_comes_back_as_it_went(type_: Any, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    codec = codec_for(type_)
    value = data.draw(values)
    written = codec.encode(value)
    assert written.keys() == {b"data"}
    back = codec.decode(written)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("type_", "values"), FIELDS, ids=[str(case[0]) for case in FIELDS])
@settings(deadline=None)
@given(data=st.data())
def test_a_value_in_fields_comes_back_as_it_went(
    type_: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = codec_for(type_, fields=True)
    value = data.draw(values)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("type_", [case[0] for case in PLAIN] + [Tree, Even, Loose], ids=str)
@settings(deadline=None)
@given(raw=st.binary() | jsons.map(lambda value: json.dumps(value).encode()))
def test_whatever_the_bytes_only_malformed_payload_is_raised(type_: Any, raw: bytes) -> None:
    with contextlib.suppress(MalformedPayload):
        codec_for(type_).decode({b"data": raw})


NAMES = st.sampled_from([b"id", b"name", b"raw", b"colour", b"note", b"x", b"street"]) | st.binary()


@settings(deadline=None)
@given(raw=st.dictionaries(NAMES, st.binary() | st.sampled_from([b"1", b"red", b"null"])))
@pytest.mark.parametrize("type_", [case[0] for case in FIELDS], ids=str)
def test_whatever_the_fields_only_malformed_payload_is_raised(type_: Any, raw: dict[bytes, bytes]) -> None:
    with contextlib.suppress(MalformedPayload):
        codec_for(type_, fields=True).decode(raw)


@settings(deadline=None)
@given(
    raw=st.recursive(
        jsons,
        lambda inner: st.fixed_dictionaries(
            {},
            optional={
                "id": inner,
                "key": inner,
                "at": inner,
                "items": st.lists(inner, max_size=2),
                "price": inner,
                "pair": inner,
            },
        ),
        max_leaves=8,
    )
)
def test_objects_of_nearly_the_right_shape_raise_nothing_else(raw: object) -> None:
    for type_ in (Order, Item, Flat):
        with pytest.raises(MalformedPayload):
            codec_for(type_).decode({b"data": json.dumps(raw).encode()})


ITEM: dict[str, Any] = {"sku": "a", "price": "1.50"}


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (int, "7", "data: must be an int, not a str"),
        (int, True, "data: must be an int, not a bool"),
        (int, 7.0, "data: must be an int, not a float"),
        (str, 7, "data: must be a str, not an int"),
        (float, "1", "data: must be a float, not a str"),
        (bool, 1, "data: must be a bool, not an int"),
        (Item, [], "data: must be an Item as an object, not a list"),
        (Item, {"sku": "a"}, "data.price: is missing"),
        (Item, {"sku": "a", "price": 1.5}, "data.price: must be a Decimal as text, not a float"),
        (Item, {"sku": "a", "price": "NaN"}, "data.price: must be a Decimal as text"),
        (Item, ITEM | {"colour": "green"}, "data.colour: must be a Colour"),
        (list[Item], [ITEM, {"sku": 7}], "data[1].price: is missing"),
        (dict[str, list[int]], {"a": [1, "2"]}, "data.a[1]: must be an int, not a str"),
        (dict[int, int], {"07": 1}, "data.(key): must be an int as text"),
        (tuple[int, str], [1], "data: must be a tuple of 2, not of 1"),
        (tuple[int, str], [1, 2], "data[1]: must be a str, not an int"),
        (Literal["a", 1], True, "data: must be one of the values allowed"),
        (datetime, "yesterday", "data: must be a datetime as text"),
        (UUID, "1234", "data: must be a UUID as text"),
        (bytes | None, "%%%", "data: must be bytes as text"),
        (int | None, "x", "data: must be an int or None, not a str"),
        (Address, {"number": 1}, "data.street: is missing"),
        (Even, {"number": 3}, "data: is refused by Even (KeyError)"),
        (Created | Paid, {"id": 1}, "data.kind: is missing"),
        (Created | Paid, {"id": 1, "kind": "sent"}, "data.kind: must say which it is: a Created or a Paid"),
        (Created | Paid, {"id": "1", "kind": "created"}, "data.id: must be an int, not a str"),
        (Created | Paid, [], "data: must be a Created or a Paid, not a list"),
        (Tree, {"name": "a", "children": [{"name": 1}]}, "data.children[0].name: must be a str, not an int"),
        (Page[int], {"items": ["a"]}, "data.items[0]: must be an int, not a str"),
        (ItemPage, {"items": [], "number": 0}, "data.number: must be above 0"),
        (Visit, {"pages": []}, "data.pages: must have a length of 1 or more"),
        (Visit, {"pages": ["long"]}, "data.pages[0]: must have a length of 3 or less"),
        (Visit, {"pages": ["a"], "rate": 2}, "data.rate: must be at most 1"),
        (Annotated[str, Field(pattern="^[a-z]+$")], "A", "data: must match ^[a-z]+$"),
        (Annotated[str, Predicate(str.islower)], "A", "data: must satisfy islower"),
        (Annotated[datetime, Timezone(...)], "2026-01-01T00:00:00", "data: must have a time zone"),
        (Annotated[int, Field(multiple_of=5)] | None, 7, "data: must be a multiple of 5"),
        (timedelta, "PT", "data: must be a timedelta as text"),
        (timedelta, "1 day", "data: must be a timedelta as text"),
        (timedelta, "P99999999999D", "data: must be a timedelta as text"),
        (set[Any], [[1]], "data: must be a set of values that can be in one"),
    ],
)
def test_what_is_not_of_the_type_is_refused_by_field_and_rule(type_: Any, value: object, message: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        codec_for(type_).decode({b"data": json.dumps(value).encode()})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (int, "7", "data: must be an int, not a str"),
        (Item, {"sku": "a"}, "data: must be of type Item, not dict"),
        (Item, Item(Sku("a"), 1.5), "data.price: must be a Decimal, not a float"),  # type: ignore[arg-type]
        (Item, Item(Sku("a"), Decimal("NaN")), "data.price: must be a finite number"),
        (float, float("nan"), "data: must be a finite number"),
        (float, 10**400, "data: must be a finite number"),
        (date, datetime(2026, 1, 1), "data: must be a date, not a datetime"),
        (list[int], (1,), "data: must be a list, not a tuple"),
        (dict, {"a": {1: 2}}, "data.a: must be a dict whose keys are all str, not an int"),
        (dict, {"a": [{1}]}, "data.a[0]: must be a value that JSON knows, not a set"),
        (str, "\ud800", "data: must be text that UTF-8 can write"),
        (bytes, "text", "data: must be bytes, not a str"),
        (Address, {"street": "a", "floor": 1}, "data: has keys that Address does not know"),
        (Address, {}, "data.street: is missing"),
        (Created | Paid, Item(Sku("a"), Decimal(1)), "data: must be a Created or a Paid, not an Item"),
        (Annotated[int, Gt(0)] | None, 0, "data: must be above 0"),
        (Visit, Visit([]), "data.pages: must have a length of 1 or more"),
        (set[int], [1], "data: must be a set, not a list"),
        (Path, "etc", "data: must be a Path, not a str"),
        (Item | None, Item(Sku("a"), 1), "data.price: must be a Decimal, not an int"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_type_is_not_written(type_: Any, value: object, message: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        codec_for(type_).encode(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\xff", "data: must be UTF-8 text"),
        (b"{", "data: must be JSON"),
        (b"NaN", "data: must be JSON"),
        (b"9" * 5000, "data: must be JSON"),
        (b"[" * 100_000, "data: is nested too deep"),
        (b"[" * 100_000 + b"]" * 100_000, "data: is nested too deep"),
    ],
)
def test_what_is_not_json_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        codec_for(Any).decode({b"data": raw})
    assert str(caught.value) in (message, "data: must be JSON")  # newer Pythons read deeper


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(MalformedPayload, match="nested too deep"):
        codec_for(list).encode(endless)


def test_an_entry_without_data_is_refused() -> None:
    with pytest.raises(MalformedPayload, match="data: is missing"):
        codec_for(int).decode({b"other": b"1"})


def test_fields_beside_the_payload_are_passed_over() -> None:
    assert codec_for(int).decode({b"data": b"7", b"_retry_count": b"1"}) == 7


def test_keys_that_the_type_does_not_know_are_passed_over() -> None:
    assert codec_for(Point).decode({b"data": b'{"x": 1, "z": 3}'}) == Point(1)


def test_a_whole_number_is_a_float_too() -> None:
    assert codec_for(float).decode({b"data": b"1"}) == 1.0


def test_the_wire_form_is_plain_json_and_plain_fields() -> None:
    item = Item(Sku("tëa"), Decimal("1.50"), Colour.RED)
    assert codec_for(Item).encode(item) == {b"data": '{"sku":"tëa","price":"1.50","colour":"red"}'.encode()}
    flat = Flat(7, "tëa", b"\xff\x00", Colour.BLUE, 0.5, False, None, None, [item])
    assert codec_for(Flat, fields=True).encode(flat) == {
        b"id": b"7",
        b"name": "tëa".encode(),
        b"raw": b"\xff\x00",
        b"colour": b"blue",
        b"ratio": b"0.5",
        b"ok": b"false",
        b"items": '[{"sku":"tëa","price":"1.50","colour":"red"}]'.encode(),
    }


def test_a_type_may_hold_itself() -> None:
    tree = Tree("a", [Tree("b", [Tree("c")]), Tree("d")])
    codec = codec_for(Tree)
    assert codec.decode(codec.encode(tree)) == tree


def test_an_entry_cannot_be_without_fields() -> None:
    for type_, value in [(dict, {}), (Loose, {})]:
        with pytest.raises(MalformedPayload, match="at least one field"):
            codec_for(type_, fields=True).encode(value)


@dataclass
class Clash:
    x: int | None = 5


@dataclass
class Holder:
    things: complex


@pytest.mark.parametrize(
    ("type_", "fields", "message"),
    [
        (Holder, False, r"Holder\.things: complex"),
        (str | Path, False, "could not be told apart"),
        (Annotated[str, Field(pattern="(")], False, r"pattern '\('"),
        (complex, False, "complex"),
        (str | datetime, False, "could not be told apart"),
        (Item | Tree, False, "could not be told apart"),
        (dict[float, int], False, "keys of a dict must be written as text"),
        (Clash, True, "x: with fields=True None"),
        (int, True, "fields=True"),
        (dict[int, str], True, "keys of a dict must be str or bytes"),
    ],
)
def test_a_type_that_cannot_be_a_payload_is_refused_at_once(type_: Any, fields: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        codec_for(type_, fields=fields)


def test_a_duration_is_written_as_iso_8601() -> None:
    value = timedelta(days=1, hours=2, seconds=3, milliseconds=500)
    assert codec_for(timedelta).encode(value) == {b"data": b'"P1DT2H3.5S"'}
    assert codec_for(timedelta).decode({b"data": b'"-PT90M"'}) == -timedelta(minutes=90)


def test_constraints_hold_for_single_fields_too() -> None:
    codec = codec_for(Visit, fields=True)
    assert codec.decode(codec.encode(Visit(["a"], 0.5))) == Visit(["a"], 0.5)
    with pytest.raises(MalformedPayload, match="rate: must be at most 1"):
        codec.decode({b"pages": b'["a"]', b"rate": b"2"})
