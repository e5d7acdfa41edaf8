"""Jobs of MindCluster: AscendJobs, Volcano Jobs and labelled Deployments, and what they switch on."""
