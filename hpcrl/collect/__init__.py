"""The collect stage merges the records of any number of plans and clusters into one dataset."""
