"""Plays a job on a made-up cluster in virtual time, before it is run: `everstep simulate`.

Reading order: `fault_classes` (what goes wrong, how often, with sources), `mishaps` (when, drawn from a
profile) and `trace` (read from a list of outages), `cluster` and `world` (the fake cluster to which it
happens), `policies`, `runs` (one run), `accounts` (where its time went), `comparison` and `what_if`.
The rules are not here: the loop, the decisions and the steps are those of a real job.
"""
