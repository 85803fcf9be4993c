"""The built-in workloads. Importing this imports no framework; the cell that uses one does."""
