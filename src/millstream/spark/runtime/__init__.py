"""The Spark session, Java, Python workers and errors."""
