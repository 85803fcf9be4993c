"""Speed beside named peers, on the same machine in the same run: ``make bench``."""
