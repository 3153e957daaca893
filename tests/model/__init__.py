"""The engine against a naive model of Redis streams, the model against a real server, and replay."""
