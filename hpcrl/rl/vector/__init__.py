"""Several environments that step together."""
