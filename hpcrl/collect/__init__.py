"""The collect stage: records of any number of plans and clusters become one dataset."""
