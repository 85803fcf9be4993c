"""Names that say that a value must not stand in a file."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"TOKEN|PASSW|(^|_)PASS(_|$)|PASSPHRASE|SECRET|CREDENTIAL|COOKIE|BEARER|WEBHOOK|NETRC|PRIVATE|API_?KEY|ACCESS_?KEY|_KEY(_|$)|^KEY$|"
    r"(^|_)(PAT|PWD|AUTH|DSN|SALT|JWT|CERT|PIN)(_|$)|DATABASE_URL|CONNECTION_STRING|SESSION_?ID",
    re.IGNORECASE,
)
# The shell's own words for directories.
_HARMLESS = frozenset({"PWD", "OLDPWD"})


def looks_secret(name: str) -> bool:
    """Tell whether a variable's name says that its value must not stand in a file."""
    return name not in _HARMLESS and bool(_SECRET.search(name))
