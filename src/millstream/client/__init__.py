"""Reaching streams wherever they are: `connect(url)` gives the same words for every server and for none."""

from millstream.client.aio import AsyncBackend, aconnect
from millstream.client.backend import Backend
from millstream.client.calls import Call
from millstream.client.capabilities import Capabilities
from millstream.client.connecting import connect

__all__ = ["AsyncBackend", "Backend", "Call", "Capabilities", "aconnect", "connect"]
