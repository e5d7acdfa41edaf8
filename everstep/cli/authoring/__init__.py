"""Commands about documents: no server is needed."""
