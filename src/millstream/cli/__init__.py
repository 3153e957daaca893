"""The command line: `millstream …`; one module a command, `main` puts them together."""
