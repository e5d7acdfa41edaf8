"""The rules of Everstep, pure: no clock, no input or output, no logging, no randomness, no Temporal.

Read `levels.py` (the words and the ladders), `deciding/playbook.py` (what a fact is called) and
`deciding/decide.py` (what is done about it), in that order; `loop/lifecycle.py` ties them together.
"""
