"""What workers and Spark share: the atomic steps of a delivery's life, and the decisions about it."""
