"""The one door to the scheduler's commands."""
