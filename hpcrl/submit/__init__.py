"""The submit stage: hands a plan's jobs to Slurm or to this machine, follows and cancels them."""
