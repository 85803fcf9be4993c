"""This machine: a queue of hpcrl's own runs the jobs."""

TITLE = "this machine"
HERE = True
COMMAND = None


def attempt(token: str, job_id: str, index: int | None) -> str:
    return f"local-{token.removeprefix('hpcrl-')}_{index or 0}"
