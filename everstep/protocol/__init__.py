"""The values that agents, the engine and ranks exchange, used as they are: Python 3.9, standard library only.

Part of the agent's archive. It imports nothing else of ours.
"""
