"""Pipelines: sources, steps, sinks, and running them."""
