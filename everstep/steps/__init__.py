"""Carry out the steps of a plan against a backend. They decide nothing and do not import Temporal.

The activities wrap them one by one; the simulator calls them directly. `perform` is the table.
"""

from everstep.steps.counting import CountOrder, count_faults, count_order
from everstep.steps.looking import QuarantineClient, QuarantineUnreachable, StepContext
from everstep.steps.perform import hand_over, perform
from everstep.steps.watch import look_once, watch

__all__ = [
    "CountOrder",
    "QuarantineClient",
    "QuarantineUnreachable",
    "StepContext",
    "count_faults",
    "count_order",
    "hand_over",
    "look_once",
    "perform",
    "watch",
]
