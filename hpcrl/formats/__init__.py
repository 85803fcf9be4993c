"""The contracts between stages: the plan directory, the ledger, the record stream and the dataset's tables."""
