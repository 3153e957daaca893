"""Group mode: the source that reads as a consumer of a group."""
