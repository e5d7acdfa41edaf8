"""Commands about jobs: queries, updates, `watch` and lists."""
