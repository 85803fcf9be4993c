"""The training loops: one class per family of algorithms."""
