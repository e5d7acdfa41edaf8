"""Faults over jobs and time: how often a device showed a code, for how long, and after which other one."""
