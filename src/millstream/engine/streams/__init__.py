"""Streams as values: ids, entries, groups and pending entries."""
