"""Everything between the engine and a client: protocol, sessions, blocking, pub/sub. No sockets in here."""
