"""Measurements while a cell runs: the sampler process, phase timers, provenance, reported values."""
