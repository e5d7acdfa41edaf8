"""What agents are ordered to do: each command, built from an order, sent over the way to an agent."""
