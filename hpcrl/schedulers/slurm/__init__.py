"""Slurm at work (:class:`hpcrl.schedulers.interface.AtWork`)."""

from hpcrl.schedulers.slurm.asking import cancel, look, settle
from hpcrl.schedulers.slurm.judging import judge
from hpcrl.schedulers.slurm.sending import hand_over

__all__ = ["cancel", "hand_over", "judge", "look", "settle"]
