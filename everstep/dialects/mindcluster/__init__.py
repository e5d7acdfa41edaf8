"""Jobs of MindCluster: AscendJobs, Volcano Jobs and labelled Deployments, and what they switch on."""

NAME = "mindcluster"
"""The name of this shape in the query `restarts`."""

COMMAND = "everstep.command"
"""The field of its command, as messages name it."""
