"""The local queue at work (:class:`hpcrl.schedulers.interface.AtWork`)."""

from hpcrl.schedulers.local.judging import judge
from hpcrl.schedulers.local.starting import cancel, hand_over, look, settle

__all__ = ["cancel", "hand_over", "judge", "look", "settle"]
