"""The profilers of the frameworks, one module each: `start(directory)`, and `stop(directory)`, which returns file and threads."""
