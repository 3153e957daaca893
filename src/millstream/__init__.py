"""Reliable work on streams: a Redis-Streams-compatible engine and broker, in Python."""
