"""Faults of submission, one after another, on a real private Slurm: is a cell lost, run twice, or told wrongly of?"""
