"""Graph layers over local and halo rows."""
