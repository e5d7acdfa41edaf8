"""One job on the server: found, queried, commanded; and what it left when it ended."""
