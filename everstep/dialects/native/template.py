"""The document that `everstep init` writes: what every job says, and what it may say besides as comments."""

from __future__ import annotations

TEMPLATE = r"""# A training job: `everstep validate` checks it, `everstep run` runs it here.
# What begins with # is an example; docs/document.md has every key.
apiVersion: everstep/v1
kind: TrainingJob
metadata:
  name: my-job                        # its ID
  # labels: {team: nlp}               # to find jobs by: everstep list --label team=nlp
spec:
  command: ["python", "train.py"]     # relative paths begin at this file

  # nodes: 2                          # or {min: 1, wanted: 2}: goes on with fewer if one is lost
  # processes_per_node: 4             # ranks of each; they find RANK, WORLD_SIZE, MASTER_ADDR ...
  # accelerators_per_node: all
  # accelerator: nvidia               # or ascend
  # env: {LR: "3e-4"}

  # Where the script saves. EVERSTEP_RESUME_PATH, if it is set, says what to go on from.
  checkpoints: {path: out/ckpt}
  # model_dir: out                    # records and run.log; else in EVERSTEP_HOME

  # How steps are seen: what the script prints.
  # progress: {log_pattern: 'step (?P<step>\d+)'}

  # Imported ahead, so that a restarted rank need not.
  # prewarm: [torch]

  # limits: {hang_s: 600, grace_s: 30}  # seconds

  # What is done about faults; else docs/playbook.md.
  # recovery:
  #   no_progress_restarts: 3
  #   rollbacks: 2                    # in a row, after bad numbers or two ends alike
  #   ladders: {crash: [in_place, pod, job]}
  #   budgets: {hardware: {limit: 50, owners: [infra]}}
  #   rules:
  #     - {match: {exit_code: [3]}, action: fail, why: "bad configuration"}

  # One after the other, each with budgets of its own; what a phase says is laid over the above.
  # phases:
  #   - {name: warmup, env: {STEPS: "100"}}
  #   - {name: main}
"""
