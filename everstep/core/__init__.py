"""The rules of Everstep, pure: no clock, no input or output, no logging, no randomness, no Temporal.

Read `levels.py` (the words and the ladders), `playbook.py` (what a fact is called) and `decide.py`
(what is done about it), in that order; `lifecycle.py` is the loop that ties them together.
"""
