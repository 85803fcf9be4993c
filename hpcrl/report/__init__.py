"""The report stage: tables and figures from a dataset."""
