"""How a decision is carried out: its plan, the steps, places for pods, nodes that are isolated."""
