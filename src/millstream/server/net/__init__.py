"""Sockets: listening, reading, writing, TLS and limits on output."""
