"""The stream store as a value: no I/O, clock, logging, threads or asyncio."""
