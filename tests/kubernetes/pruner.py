"""Prunes the records of a namespace, as a process that can be killed: KUBECONFIG NAMESPACE.

Before it judges a record it prints the job's name, and with STEPS waits for a line. At its end it prints why
the record of each job stays, as JSON; null: it is removed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from everstep.backends.kubernetes import pruning
from everstep.backends.kubernetes.api import KubernetesApi
from everstep.backends.tools import WorkflowEnd
from everstep.core.world import Leftover


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def long_ago(left: Leftover) -> WorkflowEnd:
    say(left.job.id)
    if "STEPS" in os.environ:
        await asyncio.to_thread(sys.stdin.readline)
    return WorkflowEnd(at=1_700_000_000.0)


async def main(kubeconfig: str, namespace: str) -> None:
    async with await KubernetesApi.from_kubeconfig(kubeconfig) as api:
        soon = time.time() + 60.0
        records = await pruning.prune(api, [namespace], long_ago, before=soon, is_dry_run=False)
    say(json.dumps({record.job: record.reason for record in records}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
