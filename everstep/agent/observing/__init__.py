"""What a run shows of itself: what it prints, its steps, the use of its devices, its evidence."""
