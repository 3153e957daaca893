"""Proofs that take long: `make soak`. Each is a program with its length as an option, and ends with 1 if it failed."""
