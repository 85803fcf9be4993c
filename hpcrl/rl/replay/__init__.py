"""Stores of transitions for off-policy algorithms."""
