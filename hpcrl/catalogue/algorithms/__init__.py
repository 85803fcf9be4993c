"""One file per algorithm: TITLE, FAMILY, FRAMEWORKS, ACTIONS, OBSERVATIONS, FUSED, the class Settings and fault(); LEARNS is False if it only takes steps."""
