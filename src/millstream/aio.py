"""The same words for asyncio: `from millstream.aio import Stream`."""

from millstream.client.aio import AsyncBackend
from millstream.client.aio import aconnect as connect
from millstream.worker.aio import AsyncDeadLetters, Message, Stream

__all__ = ["AsyncBackend", "AsyncDeadLetters", "Message", "Stream", "connect"]
