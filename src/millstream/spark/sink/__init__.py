"""The sink that appends rows to a stream."""
