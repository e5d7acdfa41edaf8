"""The command line: sends requests and prints what the core computed. It has no rules."""
