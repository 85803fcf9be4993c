"""Environments as pure functions, for compiled loops."""
