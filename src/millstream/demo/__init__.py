"""The whole promise in one command: `python -m millstream.demo`, or `make run`."""
