"""A Kubernetes cluster. So far: requests to its API server, and a copy of its objects that follows them."""
