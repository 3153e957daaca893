"""Commands that compute a value from other keys and may store it: set algebra, ranges, bits, SORT."""
