"""Every place that streams can be at."""

from tests.support.places import place, sentinel_port, served_broker

__all__ = ["place", "sentinel_port", "served_broker"]
