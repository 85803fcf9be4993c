"""Environments of our own."""
