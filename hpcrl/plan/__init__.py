"""The plan stage: a study and a cluster profile become a directory of scripts, cells and environments."""
