"""What the README shows is what is printed now."""

from __future__ import annotations

import re
from pathlib import Path

from hpcrl.private_slurm.config import ACCOUNT
from hpcrl.report import comparison

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_table_has_the_columns_of_a_report() -> None:
    (heads,) = (line for line in README.splitlines() if line.startswith(" configuration "))
    # One cluster, one kind of place, no GPU.
    absent = {"cluster", "resources", "GPU %", *comparison._ABOVE}
    assert re.split(r" {2,}", heads.strip()) == [name for name in comparison._SHORT if name not in absent]


def test_the_account_of_a_private_slurm() -> None:
    assert f"Its account is `{ACCOUNT}`: plan for it with `--account {ACCOUNT}`." in README
