"""The places that steps are tested at."""

from tests.support.places import place, sentinel_port, served_broker

__all__ = ["place", "sentinel_port", "served_broker"]
