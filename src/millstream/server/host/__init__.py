"""What a server process owes the system around it: its log, its pid file, its service manager."""
