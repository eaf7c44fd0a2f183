"""The socket side of the daemon: connections, requests, replies."""
