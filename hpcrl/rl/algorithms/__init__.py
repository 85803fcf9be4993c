"""Algorithms: configuration and training loop, free of any framework."""
