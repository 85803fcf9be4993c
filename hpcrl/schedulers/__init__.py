"""The schedulers at work: what they have of a plan's jobs, and how jobs get there and end.

Each is a package of this one, named as in the catalogue, with the functions of :class:`hpcrl.schedulers.interface.AtWork`.
"""
