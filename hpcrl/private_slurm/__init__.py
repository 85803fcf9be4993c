"""A private Slurm on this host, with the partitions, QOS and limits of a cluster profile."""
