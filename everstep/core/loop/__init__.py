"""The loop of a job: what follows what, what operators tell it, what it keeps in its books."""
