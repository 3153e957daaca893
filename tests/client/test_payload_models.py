"""pydantic models as payloads: read and written by their own rules; skipped where pydantic is not installed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.client.payload import codec_for
from millstream.errors import MalformedPayload

pydantic = pytest.importorskip("pydantic")


class Visit(pydantic.BaseModel):
    id: int = pydantic.Field(gt=0)
    at: datetime
    page: str = pydantic.Field(alias="url")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: int
    at: datetime


class Jumpy(pydantic.BaseModel):
    id: int

    @pydantic.field_validator("id")
    @classmethod
    def check(cls, value: int) -> int:
        raise LookupError(value)  # pydantic lets this one through


@dataclass
class Day:
    visits: list[Visit]
    best: Visit | None = None


texts = st.text(st.characters(exclude_categories=["Cs"]))
visits = st.builds(Visit, id=st.integers(min_value=1), at=st.datetimes(), url=texts)


@settings(deadline=None)
@given(visits)
def test_a_model_comes_back_as_it_went(visit: Visit) -> None:
    codec = codec_for(Visit)
    assert codec.decode(codec.encode(visit)) == visit


@settings(deadline=None)
@given(st.lists(visits, max_size=2), st.none() | visits)
def test_a_model_inside_a_dataclass_comes_back_as_it_went(all_visits: list[Visit], best: Visit | None) -> None:
    codec = codec_for(Day)
    assert codec.decode(codec.encode(Day(all_visits, best))) == Day(all_visits, best)


@settings(deadline=None)
@given(st.binary() | st.from_regex(rb'\{"id": ?[0-9"]{1,3}\}'))
def test_whatever_the_bytes_only_malformed_payload_is_raised(raw: bytes) -> None:
    for type_ in (Visit, Jumpy, Day, Strict):
        with pytest.raises(MalformedPayload, match=r"^data"):
            codec_for(type_).decode({b"data": raw})


def test_a_strict_model_inside_something_else_still_reads_dates() -> None:
    codec = codec_for(list[Strict])
    value = [Strict(id=1, at=datetime(2026, 1, 1))]
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(MalformedPayload, match=r"^data\[0\]: is refused by Strict"):
        codec.decode({b"data": b'[{"id": "1", "at": "2026-01-01T00:00:00"}]'})


def test_another_type_is_not_written_as_a_model() -> None:
    with pytest.raises(MalformedPayload, match="must be of type Visit, not dict"):
        codec_for(Visit).encode({"id": 1})
