"""Server and worker of this machine, as child processes."""
