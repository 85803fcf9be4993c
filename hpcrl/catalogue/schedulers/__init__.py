"""One file per scheduler: TITLE, HERE, COMMAND, attempt()."""
