"""The offline half of bitring: what an epoch moves and computes, without torch and without MPI."""
