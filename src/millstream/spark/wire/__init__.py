"""Bytes from the server to columns: sockets, RESP to Arrow, rows, metadata."""
