"""Commands on strings, hashes, lists, sets and sorted sets, and on keys of any type."""
