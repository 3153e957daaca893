"""Commands that move data: publish, import, export, migrate."""
