"""The agent: first process of a pod, standard library only, shipped as one zipapp.

It starts, watches and stops the training processes of its pod, and reports what it sees to the worker.
It decides nothing: all that it has of a job is in the commands that it receives.
"""
