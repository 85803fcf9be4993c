"""The submit stage submits a plan's jobs to Slurm or to this machine, follows them and cancels them."""
