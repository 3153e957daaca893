"""Arguments and numbers as Redis reads and prints them, and glob patterns."""
