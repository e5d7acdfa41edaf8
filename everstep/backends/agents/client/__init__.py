"""The way to an agent: sends requests, watches its state, turns that into pods and facts. For any cluster."""
