"""What runs inside a worker: loop, leases, threads and connections."""
