"""All algorithms and frameworks, one file each. It imports only the standard library; spec, plan, run and rl read it."""
