"""One file per algorithm: TITLE, FAMILY, FRAMEWORKS, ACTIONS, OBSERVATIONS, FUSED, the class Settings and fault()."""
