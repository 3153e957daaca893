"""Range mode: the source that reads spans of ids."""
