"""Training: one rank's engine, metrics, the loop, what is recorded."""
