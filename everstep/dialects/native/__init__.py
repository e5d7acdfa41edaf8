"""Our own documents, apiVersion everstep/v1. What they leave open is answered by the core's own tables."""
