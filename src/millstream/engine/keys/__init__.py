"""Databases of keys, their expiry and plain values."""
