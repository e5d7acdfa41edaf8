"""The command line: it asks, and prints what others computed. No rule lives here."""
