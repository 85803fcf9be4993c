"""``python -m hpcrl``."""

from hpcrl.cli.main import main

main()
