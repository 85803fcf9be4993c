"""The built-in workloads. This package imports no framework; the cell that uses one imports it."""
