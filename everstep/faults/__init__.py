"""What fault codes mean: NVIDIA's XIDs and SXIDs, Ascend's and ModelArts' codes, as data.

A reporter often gives a code and no more. `with_meaning` fills in what is known of it, at the edges where
facts are made; the core never asks here, so what was once recorded does not change with the data.
"""

from everstep.faults.catalogue import CodeEntry, entries, look_up
from everstep.faults.telling import fault_class, informed, with_meaning

__all__ = ["CodeEntry", "entries", "fault_class", "informed", "look_up", "with_meaning"]
