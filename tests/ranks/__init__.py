"""Programs that tests start as the ranks of real jobs."""
