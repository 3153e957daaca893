"""An ordinary worker of the group that the Spark pipeline is in: accepts orders and publishes them to `accepted`.

python -m examples.shop.worker URL DIRECTORY NAME
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.shop.events import Product
from examples.shop.leash import on_leash
from examples.shop.orders import (
    ACCEPTED,
    BACKOFF_S,
    GROUP,
    LEASE_S,
    MAX_RETRIES,
    STREAM,
    Order,
    check_price,
    read_products,
    unknown,
)
from millstream import Backoff, Message, Stream

CALL_S = 0.05  # how long the price service takes to answer
CONCURRENCY = 4


@dataclass(frozen=True, slots=True)
class Accepted:
    """An order that was accepted, as fields of an entry."""

    entry: str
    delivery: int
    order: int
    customer: str
    country: str
    product: str
    quantity: int
    price: int
    at: str
    title: str
    category: str


class Products:
    """The product table, read again when its file has been replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = -1
        self._rows: Mapping[str, Product] = {}

    def find(self, product: str) -> Product:
        changed = self._path.stat().st_mtime_ns
        if changed != self._seen:
            self._rows, self._seen = read_products(self._path), changed
        if product not in self._rows:
            raise unknown(product)
        return self._rows[product]


def work(url: str, directory: Path, name: str) -> None:
    """Work until SIGTERM."""
    products = Products(directory / "products.jsonl")
    accepted = Stream[Accepted](ACCEPTED, url, fields=True, dedupe_window=7 * 86_400.0)
    orders = Stream[Order](
        STREAM,
        url,
        group=GROUP,
        consumer=name,
        lease=LEASE_S,
        max_retries=MAX_RETRIES,
        backoff=Backoff(first=BACKOFF_S),
    )

    @orders.handler(concurrency=CONCURRENCY)
    def accept(order: Order, message: Message[Order]) -> None:
        time.sleep(CALL_S)
        check_price(order.order, order.outage, message.attempt)
        found = products.find(order.product)
        row = Accepted(
            message.id,
            message.attempt,
            order.order,
            order.customer,
            order.country,
            order.product,
            order.quantity,
            order.price,
            order.at,
            found.title,
            found.category,
        )
        # The entry's id as the token: accepted again after a crash, it is published once.
        accepted.publish(row, dedupe=message.id)

    orders.run()


if __name__ == "__main__":
    on_leash()
    work(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
