"""Sessions, calls, blocking commands and timers: how one command runs."""
