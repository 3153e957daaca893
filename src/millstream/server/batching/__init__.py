"""Fast paths that run many pipelined requests together."""
