"""The whole promise in one command: `python -m examples.shop`, or `make run`."""
