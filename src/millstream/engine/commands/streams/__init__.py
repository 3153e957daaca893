"""Commands on streams and consumer groups."""
