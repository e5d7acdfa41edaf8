"""The loop of a job: its transitions, the commands of operators, and what it records."""
