"""RESP: requests to arguments, replies to bytes."""
