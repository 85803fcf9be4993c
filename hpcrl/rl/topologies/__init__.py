"""Actors that explore and a learner that learns, in processes of one MPI program. Needs NumPy and mpi4py."""
