"""The durable part: workflows that drive the pure machine with activities and judge nothing."""
