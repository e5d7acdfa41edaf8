"""What `everstep simulate` costs: 10,000 nodes for 30 days, by default rules and the reference profile.

The processor's time is what counts. Fewer days, for a busy machine: `python -m benchmarks.simulated_month 3`.
"""

from __future__ import annotations

import sys
import time

from everstep.dialects.registry import compile_document
from everstep.simulate.experiment import Experiment, scene
from everstep.simulate.policies import policy_named
from everstep.simulate.runs import played
from tests.support.stage import document

NODES, DAYS, SEED = 10_000, 30.0, 7
GOAL_S = 600.0


def main() -> int:
    days = float(sys.argv[1]) if len(sys.argv) > 1 else DAYS
    spec = compile_document(document(nodes=NODES))
    experiment = Experiment(jobs=(spec,), days=days)
    one = scene(experiment, SEED)
    processor, real = time.process_time(), time.perf_counter()
    account = played(one, policy_named("document"))
    processor, real = time.process_time() - processor, time.perf_counter() - real
    print(f"\n{NODES} nodes, {experiment.spare_nodes} spare, {days:g} days, seed {SEED}")
    print(f"  {len(one.mishaps)} mishaps, {account.restarts} restarts, {account.ettr:.2%} trains")
    print(f"  {processor:.0f} s of a processor, {real:.0f} s of real time")
    print(f"  {processor / max(account.restarts, 1):.2f} s of a processor for each restart")
    is_met = processor <= GOAL_S * days / DAYS
    print(f"  goal: {GOAL_S * days / DAYS:.0f} s, {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
