"""The environments stage builds, locks and checks software environments."""
