"""The agent: first process of a pod, standard library only, shipped as one zipapp.

It starts, watches and stops the training processes of its pod, and tells what it sees to whoever asks.
It decides nothing and knows nothing of jobs beside what each command says.
"""
