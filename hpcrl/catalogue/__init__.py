"""What exists: algorithms and frameworks, one file each. Standard library only; spec, plan, run and rl read it."""
