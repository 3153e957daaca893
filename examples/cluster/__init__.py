"""A small deployment to try: a Spark cluster of several processes beside a Valkey Cluster; see docs/scaling.md."""
