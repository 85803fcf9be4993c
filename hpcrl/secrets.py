"""Recognise secrets by the names of variables and in command lines, so that no file contains them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SECRET = re.compile(
    r"TOKEN|PASSW|(^|_)PASS(_|$)|PASSPHRASE|SECRET|CREDENTIAL|COOKIE|BEARER|WEBHOOK|NETRC|PRIVATE|API_?KEY|ACCESS_?KEY|_KEY(_|$)|^KEY$|"
    r"(^|_)(PAT|PWD|AUTH|DSN|SALT|JWT|CERT|PIN)(_|$)|DATABASE_URL|CONNECTION_STRING|SESSION_?ID",
    re.IGNORECASE,
)
# Not secrets: the shell's directories, sockets, files of public certificates, and the words of language models, which count and cut tokens.
_HARMLESS = re.compile(
    r"(OLD)?PWD|SSH_AUTH_SOCK|PASS_THROUGH|TOKENI[SZ]ERS?(_\w+)?|(MAX|MIN|NUM|N|TOTAL)(_\w+)?_TOKENS|"
    r"TOKEN_(LENGTH|COUNT|LIMIT|TYPE)|(MASK|PAD|EOS|BOS|UNK|SEP|CLS)_TOKEN|(\w+_)?CERT_(FILE|PATH|DIR)",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Tell whether a variable's name looks like the name of a secret."""
    return not _HARMLESS.fullmatch(name) and bool(_SECRET.search(name))


# The last words of an option's name. `--tokenizer`, `--max-tokens` and `--key-bindings` end in none of them.
_OPTION = re.compile(
    r"(?:^|[-_.])(?:token|passw(?:or)?d|passphrase|pwd|secret|apikey|credential|bearer|jwt|cookie|pat|dsn|"
    r"(?:api|access|secret|private|account|master|wandb|openai)[-_]?key|session[-_]?id|connection[-_]string)$",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)=(.+)", re.ASCII | re.DOTALL)
_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:([^/\s@]+)@", re.IGNORECASE)
_USER_IN_URL = re.compile(r"https?://([^/\s:@]{16,})@", re.IGNORECASE)
_IN_QUERY = re.compile(r"[?&]([A-Za-z_][\w.-]*)=([^&\s]+)", re.ASCII)
_HEADER = re.compile(r"(?:authorization:\s*(?:\w+\s+)?|bearer\s+)(\S+)", re.IGNORECASE)
# How the tokens of common services begin.
_TOKEN = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{20,}|glpat-[\w-]{15,}|AKIA[0-9A-Z]{16}|xox[abp]-[\w-]{10,}|"
    r"sk-[\w-]{20,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}|hooks\.slack\.com/services/\w+)"
)
# Options of language models that name a special word: `--mask-token [MASK]`.
_SPECIAL = re.compile(r"-*(?:mask|pad|eos|bos|unk|sep|cls|agent)[-_.]token", re.IGNORECASE)
# A variable, a placeholder or the path of a file is not the value itself.
_ELSEWHERE = re.compile(r"\$|%|\{[A-Za-z_]\w*\}$|[/.~@<]|(?:file|env):|-")
_NUMBER = re.compile(r"-?[0-9.]+(?:e-?[0-9]+)?|true|false|none|null|yes|no", re.IGNORECASE)


_LOGIN = re.compile(r"(?<=://)(?!/)\S*@")  # to the last @ of a word: a password may have a slash in it


def without_password(text: str) -> str:
    """Leave out user and password of every address in a text. Paths of files (``sqlite:///...``) are as they were."""
    return _LOGIN.sub("", text)


def secret_among(words: Sequence[str]) -> str | None:
    """Find what looks like a secret in a command line. Return its place, never its value: ``the value of --token``.

    Words with spaces, as after ``bash -c``, are searched too.
    """
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        if (secret := _secret_in(word, after)) is not None:
            return secret
        if parts := word.split():
            inner = [part.strip("\"';()") for part in parts]
            if len(inner) > 1 and (secret := secret_among(inner)) is not None:
                return secret
    return None


def _secret_in(word: str, after: str) -> str | None:
    if _TOKEN.search(word):
        return "a word that begins like a service's token"
    if (match := _IN_URL.search(word)) and _is_value(match[1]):
        return "the password in a URL"
    if (match := _USER_IN_URL.search(word)) and _is_value(match[1]):
        return "the user name in a URL"
    if (match := _HEADER.search(word)) and _is_value(match[1]):
        return "the value of an Authorization header"
    for name, value in _IN_QUERY.findall(word):
        if _OPTION.search(name) and _is_value(value):
            return f"the value of {name} in a URL"
    if match := _NAMED.fullmatch(word):
        name = match[1]
        named = (_OPTION.search(name) and not _SPECIAL.fullmatch(name)) or (name.isupper() and looks_secret(name))
        return f"the value of {name}" if named and _is_value(match[2]) else None
    if word.startswith("-") and _OPTION.search(word) and not _SPECIAL.fullmatch(word) and _is_value(after):
        return f"the word after {word}"
    return None


def _is_value(text: str) -> bool:
    return bool(text) and not _ELSEWHERE.match(text) and not _NUMBER.fullmatch(text)
