"""Settings of workers, where they come from, and their checks."""
