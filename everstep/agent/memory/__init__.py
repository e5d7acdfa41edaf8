"""Memory that ranks share with their agent."""
