"""The append-only log: writing, replaying, rewriting and checking it."""
