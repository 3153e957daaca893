"""The sink that settles deliveries, and the outcomes of rows."""
