"""Documents of ModelArts, what their annotations switch on, and how a job looks there."""

NAME = "modelarts"
"""The name of this shape in the query `status`, and its key in the memo."""

COMMAND = "algorithm.command"
"""What a job needs before it can run; documents of their examples do without."""

JOB_NAME = r"[A-Za-z0-9_-]{1,64}"
"""A name becomes the workflow's ID and a folder: nothing but these signs can do harm there."""

COMMON_KIND = "job"
KINDS = (
    *(COMMON_KIND, "edge_job", "hetero_job", "mrs_job", "autosearch_job", "diag_job"),
    *("visualization_job", "federated_pool_job"),
)
