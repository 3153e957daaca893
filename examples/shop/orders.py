"""What an order is, and what handling one means: the same for workers and for Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.shop.events import FORGOTTEN, PRODUCTS, Product

STREAM, ACCEPTED, GROUP = "orders", "accepted", "billing"
LEASE_S = 20.0
MAX_RETRIES = 3
BACKOFF_S = 0.25


@dataclass(frozen=True, slots=True)
class Order:
    """An order as it stands in the stream."""

    order: int
    customer: str
    country: str
    product: str
    quantity: int
    price: int  # cents
    at: str
    outage: int = 0  # for so many deliveries the price service is down


class PriceServiceDown(Exception):
    """A failure that passes."""


class UnknownProduct(Exception):
    """A failure that lasts until somebody completes the table."""


def check_price(order: int, outage: int, attempt: int) -> None:
    """Ask the price service, which is down at times."""
    if attempt <= outage:
        raise PriceServiceDown(f"the price service does not answer for order {order}")


def unknown(product: str) -> UnknownProduct:
    return UnknownProduct(f"product {product} is not in the product table")


def write_products(path: Path, *, complete: bool) -> None:
    """The product table as a file of JSON lines, replaced at once."""
    rows = PRODUCTS + FORGOTTEN if complete else PRODUCTS
    draft = path.with_suffix(".new")
    draft.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    os.replace(draft, path)


def read_products(path: Path) -> Mapping[str, Product]:
    """The product table by product."""
    rows = [Product(**json.loads(line)) for line in path.read_text().splitlines()]
    return {row.product: row for row in rows}
