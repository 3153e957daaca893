"""Workers: handlers run on the entries of a stream, each until it is settled."""
