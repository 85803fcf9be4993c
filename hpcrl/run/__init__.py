"""The run stage: what a script calls inside a cell's environment, `python -m hpcrl.run PLAN --job J --task N`."""
