"""Features beside commands: pub/sub, tracking, WATCH, slow log, memory."""
