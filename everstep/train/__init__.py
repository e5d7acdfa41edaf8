"""What a training script may import: it reports its steps, and keeps its state where a restart finds it.

    from everstep.train import run

    restored = run.restore()  # None: load the checkpoint as usual
    for step in range(first, last + 1):
        loss = forward_and_backward()
        with run.updating(step):
            optimizer.step()
        run.step(step)
        run.snapshot(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

Standard library, Python 3.9. Without an agent (under plain python, torchrun or Slurm) every call does nothing
and `restore` returns None. No call but `restore` raises because of the agent.
"""

from everstep.train.run import Restored, Run, SnapshotUnreadable

run = Run()
"""The rank that this process is."""

__all__ = ["Restored", "Run", "SnapshotUnreadable", "run"]
