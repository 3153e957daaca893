"""What tests share: real servers on loopback, and a connection that shows their raw replies."""
