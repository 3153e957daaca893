"""The orders of the demo: exact shares, the same for a seed, and a truth that is theirs."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from examples.shop.events import FORGOTTEN, PRODUCTS, Kind, sends, truth
from examples.shop.orders import Order
from millstream.client.payload import codec_for
from millstream.errors import MalformedPayload

SIZE = 20_000


def test_the_same_seed_gives_the_same_orders_and_another_one_others() -> None:
    assert list(sends(500, 1)) == list(sends(500, 1))
    assert list(sends(500, 1)) != list(sends(500, 2))


def test_the_shares_are_exact() -> None:
    made = list(sends(SIZE, 7))
    kinds = Counter(send.kind for send in made if not send.is_again)
    assert len(made) == SIZE
    assert sum(send.is_again for send in made) == SIZE * 0.005
    assert (kinds[Kind.MALFORMED], kinds[Kind.FLAKY], kinds[Kind.UNKNOWN], kinds[Kind.LATE]) == (200, 400, 20, 200)


def test_what_is_sent_again_was_sent_before_with_the_same_token_and_payload() -> None:
    before: dict[str, bytes] = {}
    for send in sends(SIZE, 7):
        assert send.is_again == (send.token in before)
        assert before.setdefault(send.token, send.payload) == send.payload


def test_only_malformed_orders_cannot_be_read_as_orders() -> None:
    codec = codec_for(Order)
    for send in sends(SIZE, 7):
        if send.kind is Kind.MALFORMED:
            with pytest.raises(MalformedPayload):
                codec.decode({b"data": send.payload})
        else:
            codec.decode({b"data": send.payload})


def test_the_truth_adds_up_from_the_payloads_themselves() -> None:
    accepted: dict[int, dict[str, object]] = {}
    for send in sends(SIZE, 7):
        if send.kind is not Kind.MALFORMED:
            order = json.loads(send.payload)
            accepted[order["order"]] = order
    revenue: Counter[str] = Counter()
    for order in accepted.values():
        revenue[str(order["at"])[:13]] += int(str(order["quantity"])) * int(str(order["price"]))
    found = truth(SIZE, 7)
    assert found.accepted == accepted.keys()
    assert found.revenue == revenue
    assert found.published == len(accepted) + found.kinds[Kind.MALFORMED]
    assert sum(found.kinds.values()) == found.published


def test_products_of_unknown_orders_are_missing_from_the_table_and_no_others() -> None:
    known, missing = {each.product for each in PRODUCTS}, {each.product for each in FORGOTTEN}
    for send in sends(SIZE, 7):
        if send.kind is not Kind.MALFORMED:
            assert json.loads(send.payload)["product"] in (missing if send.kind is Kind.UNKNOWN else known)
