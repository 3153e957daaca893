"""Commands about our own broker and its files."""
