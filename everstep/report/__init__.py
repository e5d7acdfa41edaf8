"""The report of a job, and of all jobs of a week: computed from what jobs leave, rendered as pages.

`accounting` divides the time of a job, `job_report` and `fleet_report` build the values that `--json`
prints, `sentences` words them, `charts` draws, `render` writes HTML and Markdown. All of it is pure.
"""
