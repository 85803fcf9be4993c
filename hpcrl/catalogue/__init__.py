"""All algorithms, frameworks and schedulers, one file each. It imports only the standard library; spec, plan, run and rl read it."""
