"""Test suites of Redis and of redis-py, fetched when they are run and held against this server and a real one."""
