"""The profilers that cells can run under, one module each, found by its name."""
