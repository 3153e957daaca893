"""Orders as a shop would send them, good ones and bad ones, made from a seed; and the truth about them.

    sends(size, seed)  ──▶ what the producer sends, one after the other, some of it twice
    truth(size, seed)  ──▶ what must come out of it: counts by kind, accepted orders, revenue by hour

The same seed and size give the same orders on every machine. Knows nothing of streams.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from functools import cache
from typing import Any

FIRST_DAY = date(2026, 3, 2)
DAY_S = 86_400
FROM_S, OPEN_S = 8 * 3600, 8 * 3600  # of a day, when orders come: from eight o'clock on, for eight hours
COUNTRIES = ("AT", "BR", "CA", "DE", "ES", "FR", "GB", "IN", "JP", "KE", "MX", "NL", "SE", "US", "ZA")
MALFORMED, FLAKY, UNKNOWN, LATE, TWICE = 0.01, 0.02, 0.001, 0.01, 0.005  # shares of what is sent
_encoder = json.JSONEncoder(separators=(",", ":"))  # made once: `dumps` with separators makes one each time
LOOK_BACK = 2_000  # a repeated order was sent at most so many sends before


Order = dict[str, Any]


class Kind(StrEnum):
    """What is special about an order."""

    GOOD = "good"
    LATE = "late"  # good; it happened up to four hours before it was sent
    FLAKY = "flaky"  # the price service is down for its first deliveries
    UNKNOWN = "unknown"  # its product is not in the table, until the table is completed
    MALFORMED = "malformed"  # not what an order looks like


@dataclass(frozen=True, slots=True)
class Product:
    """A row of the table that orders are joined with."""

    product: str
    title: str
    category: str


_NAMES = ("Kettle", "Lamp", "Chair", "Shelf", "Clock", "Mug", "Rug", "Desk", "Vase", "Frame", "Bowl", "Tray")
_CATEGORIES = ("kitchen", "light", "seating", "storage", "decor")
PRODUCTS = tuple(
    Product(f"P{n:03}", f"{_NAMES[n % len(_NAMES)]} {n // len(_NAMES) + 1}", _CATEGORIES[n % len(_CATEGORIES)])
    for n in range(48)
)
FORGOTTEN = tuple(Product(f"N{n:03}", f"New {_NAMES[n]}", "novelty") for n in range(3))  # missing until the "fix"


@dataclass(frozen=True, slots=True)
class Send:
    """One thing that the producer sends."""

    token: str  # the same when it is sent again
    payload: bytes
    kind: Kind
    is_again: bool = False  # sent before with the same token


@dataclass(slots=True)
class Truth:
    """What must come out, known from how it was made."""

    sent: int = 0
    again: int = 0  # of these: sent a second time
    kinds: Counter[Kind] = field(default_factory=Counter)  # of the others
    accepted: set[int] = field(default_factory=set)  # order numbers, once everything is put right
    revenue: Counter[str] = field(default_factory=Counter)  # cents by hour, 2026-03-02T09

    @property
    def published(self) -> int:
        return self.sent - self.again


def sends(size: int, seed: int) -> Iterator[Send]:
    """So many sends, in order."""
    for send, _ in _made(size, seed):
        yield send


def truth(size: int, seed: int) -> Truth:
    """What must come out of these sends."""
    found = Truth()
    for send, order in _made(size, seed):
        found.sent += 1
        if send.is_again:
            found.again += 1
            continue
        found.kinds[send.kind] += 1
        if send.kind is not Kind.MALFORMED:
            found.accepted.add(order["order"])
            found.revenue[order["at"][:13]] += order["quantity"] * order["price"]
    return found


def _made(size: int, seed: int) -> Iterator[tuple[Send, Order]]:
    luck = random.Random(seed)
    kinds = _kinds(size, luck)
    recent: list[tuple[Send, Order]] = []
    for number, kind in enumerate(kinds):
        if kind is None and recent:
            send, order = luck.choice(recent)
            yield Send(send.token, send.payload, send.kind, is_again=True), order
            continue
        made = _order(number, size, kind or Kind.GOOD, luck)
        payload = _encoder.encode(made).encode()
        if kind is Kind.MALFORMED:
            payload = _spoiled(made, payload, luck)
        send = Send(f"order-{number}", payload, kind or Kind.GOOD)
        recent.append((send, made))
        if len(recent) > LOOK_BACK:
            del recent[: LOOK_BACK // 2]
        yield send, made


def _kinds(size: int, luck: random.Random) -> list[Kind | None]:
    """What each send is, with exact shares; None: an earlier one again."""
    found: list[Kind | None] = []
    for share, kind in (
        (MALFORMED, Kind.MALFORMED),
        (FLAKY, Kind.FLAKY),
        (UNKNOWN, Kind.UNKNOWN),
        (LATE, Kind.LATE),
        (TWICE, None),
    ):
        found += [kind] * round(size * share)
    found += [Kind.GOOD] * (size - len(found))
    luck.shuffle(found)
    return found


def _order(number: int, size: int, kind: Kind, luck: random.Random) -> Order:
    pick = luck.random  # five times as quick as randrange, and made 1,200,000 times
    second = FROM_S + number * OPEN_S // size
    if kind is Kind.LATE:
        second -= 600 + int(pick() * (4 * 3600 - 600))
    products = FORGOTTEN if kind is Kind.UNKNOWN else PRODUCTS
    order: Order = {
        "order": number,
        "customer": f"C{int(pick() * 20_000):05}",
        "country": COUNTRIES[int(pick() * len(COUNTRIES))],
        "product": products[int(pick() * len(products))].product,
        "quantity": 1 + int(pick() * 5),
        "price": 199 + int(pick() * 19_800),  # cents
        "at": _time(second),
    }
    if kind is Kind.FLAKY:
        order["outage"] = 1 + int(pick() * 2)  # deliveries for which the price service is down
    return order


def _time(second: int) -> str:
    """The time so many seconds after the first day began."""
    day, rest = divmod(second, DAY_S)
    hour, rest = divmod(rest, 3600)
    minute, rest = divmod(rest, 60)
    return f"{_date(day)}T{hour:02}:{minute:02}:{rest:02}Z"


@cache
def _date(day: int) -> str:
    return (FIRST_DAY + timedelta(days=day)).isoformat()


def _spoiled(order: Order, payload: bytes, luck: random.Random) -> bytes:
    """The order as a broken program might send it."""
    match luck.randrange(4):
        case 0:
            return payload[: luck.randrange(1, len(payload) - 1)]  # cut off
        case 1:
            return json.dumps({name: value for name, value in order.items() if name != "country"}).encode()
        case 2:
            return json.dumps({**order, "quantity": "three"}).encode()
    return b"\xff\xfe" + payload  # not UTF-8
