"""The run stage: a plan's scripts call it inside a cell's environment: `python -m hpcrl.run PLAN --job J --index N`."""
