"""What people read of a job: records, run.log, events, notices, status. Folded from the job's events.

Pure, and outside the rules: nothing here decides, and no rule reads it. The loop says what happens
(`core/loop/job_events.py`), a `Chronicle` remembers it, and each view is a projection of that.
"""
