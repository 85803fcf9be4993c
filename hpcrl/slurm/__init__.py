"""The one door to the scheduler's commands, and a private Slurm to test against."""
