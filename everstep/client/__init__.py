"""What one does to jobs from Python: `import everstep` has it, and the command line prints it."""
