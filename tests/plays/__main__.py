"""Prints which plays on real processes are needed, what only they show, and which are left out."""

from tests.plays import cases, scenarios

for coverage in (scenarios.COVERAGE, cases.COVERAGE):
    print(*coverage.lines(), sep="\n")
