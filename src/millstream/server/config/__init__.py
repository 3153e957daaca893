"""Settings of the server and their file."""
