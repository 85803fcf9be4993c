"""One file per algorithm: TITLE, FAMILY, FRAMEWORKS, ACTIONS, OBSERVATIONS, the class Settings and fault()."""
