"""Variables of ModelArts that scripts read.

Folders of the platform and names of its name server (`MA_VJ_NAME`) have no counterpart here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from everstep.dialects.dialect import RankPlace

TASK = "worker"
"""The role of every pod; there is only one."""

VARIABLES: Mapping[str, Callable[[RankPlace], object]] = {
    "MA_SCHEDULE_CNT": lambda at: at.start.schedule_count,
    "MA_PROC_START_CNT": lambda at: at.start.process_start_count,
    "MA_NUM_HOSTS": lambda at: len(at.hosts),
    "MA_NUM_GPUS": lambda at: at.devices,  # whatever their kind
    "MA_TASK_NAME": lambda _at: TASK,
    "MA_CURRENT_IP": lambda at: at.hosts[at.start.node_rank],
    "MA_CURRENT_INSTANCE_NAME": lambda at: f"{at.job}-{TASK}-{at.start.node_rank}",
    "VC_TASK_INDEX": lambda at: at.start.node_rank,
    "VC_WORKER_NUM": lambda at: len(at.hosts),
    "VC_WORKER_HOSTS": lambda at: ",".join(at.hosts),
}
