"""The algorithms as data, one file each: `algorithm(space, settings)`, and how its loop chooses actions."""
