"""Full-graph training of graph neural networks over MPI (the training half of bitring)."""

__version__ = "0.1.0"
