"""Server, worker and job on this machine while a command runs."""
