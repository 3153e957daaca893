"""Users, passwords and permissions."""
