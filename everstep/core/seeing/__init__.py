"""What a watcher makes of what it sees: progress, silence, what goes wrong while a job goes on."""
