"""Graphs: reading, generating, preparing, splitting, partitioning."""
