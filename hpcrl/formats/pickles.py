"""Pickles of plain values, read without trusting them.

A pickle is a program for a small stack machine, and the standard library's runs all of it. This one knows only the
instructions that a pickle of None, booleans, numbers, text, bytes, tuples, lists and dictionaries is made of. There
is no instruction here that names a class, calls, imports, or allocates more than the pickle itself has bytes, so
nothing has to be forbidden; and the number of instructions is bounded, so time and memory are.

The meaning of each instruction is the one of the standard library's module pickletools.
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any

MAX_INSTRUCTIONS = 200_000  # less than a second and 20 MB, whatever they are
MAX_TEXT = 2 * 1024 * 1024  # bytes of text in one pickle: a single emoji makes four of each
MAX_REPEATED = 256  # characters of a text that may be referred to again, so that references cannot multiply the size
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
_U16, _I32, _U32, _U64, _F64 = (struct.Struct(form).unpack_from for form in ("<H", "<i", "<I", "<Q", ">d"))


class PickleError(Exception):
    """A pickle that is damaged or contains more than plain values. The message continues a sentence such as "a frame that ..."."""


def loads(data: bytes, places: list[tuple[int, int]] | None = None) -> Any:
    """Read a pickle (protocol 2 to 4) of plain values.

    Args:
        places: is filled with the offset and length of each `bytes` value, in order.

    Raises:
        PickleError: it is damaged, or contains other values.
    """
    try:
        return _run(data, places if places is not None else [])
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise PickleError(f"is damaged ({type(error).__name__}: {error})") from None


def _run(data: bytes, places: list[tuple[int, int]]) -> Any:
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks below each mark
    memo: dict[int, Any] = {}
    at = 0
    texts = 0  # bytes of text so far, including repeated references

    def text(size: int, head: int) -> str:
        nonlocal at, texts
        start = at + head
        at = start + size
        if at > len(data):
            raise PickleError("is cut short")
        if (texts := texts + size) > MAX_TEXT:
            raise PickleError(f"has more than {MAX_TEXT} bytes of text")
        try:
            return data[start:at].decode()
        except UnicodeDecodeError:  # a lone surrogate becomes a question mark
            return data[start:at].decode(errors="surrogatepass").encode(errors="replace").decode()

    def remembered(index: int) -> str:
        nonlocal texts
        value = memo.get(index)
        if type(value) is not str or len(value) > MAX_REPEATED:
            raise PickleError("refers again to more than a short text")
        if (texts := texts + len(value)) > MAX_TEXT:
            raise PickleError(f"has more than {MAX_TEXT} bytes of text")
        return value

    def raw(size: int, head: int) -> bytes:
        nonlocal at
        start = at + head
        at = start + size
        if at > len(data):
            raise PickleError("is cut short")
        places.append((start, size))
        return data[start:at]

    def since_mark() -> list[Any]:
        nonlocal stack
        items, stack = stack, below.pop()
        return items

    for _ in range(MAX_INSTRUCTIONS):
        code = data[at]
        at += 1
        match code:
            case 0x71:  # BINPUT
                memo[data[at]] = stack[-1]
                at += 1
            case 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            case 0x68:  # BINGET
                stack.append(remembered(data[at]))
                at += 1
            case 0x8C:  # SHORT_BINUNICODE
                stack.append(text(data[at], 1))
            case 0x58:  # BINUNICODE
                stack.append(text(_U32(data, at)[0], 4))
            case 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            case 0x47:  # BINFLOAT
                stack.append(_F64(data, at)[0])
                at += 8
            case 0x28:  # MARK
                below.append(stack)
                stack = []
            case 0x75:  # SETITEMS
                items = since_mark()
                _set(stack[-1], items)
            case 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, value])
            case 0x7D:  # EMPTY_DICT
                stack.append({})
            case 0x5D:  # EMPTY_LIST
                stack.append([])
            case 0x29:  # EMPTY_TUPLE
                stack.append(())
            case 0x65:  # APPENDS
                items = since_mark()
                _extend(stack[-1], items)
            case 0x61:  # APPEND
                item = stack.pop()
                _extend(stack[-1], [item])
            case 0x85 | 0x86 | 0x87:  # TUPLE1, TUPLE2, TUPLE3
                count = code - 0x84
                if len(stack) < count:
                    raise PickleError("is damaged (too little on the stack)")
                stack[-count:] = [tuple(stack[-count:])]
            case 0x74:  # TUPLE
                items = since_mark()
                stack.append(tuple(items))
            case 0x43:  # SHORT_BINBYTES
                stack.append(raw(data[at], 1))
            case 0x42:  # BINBYTES
                stack.append(raw(_U32(data, at)[0], 4))
            case 0x8E:  # BINBYTES8
                stack.append(raw(_U64(data, at)[0], 8))
            case 0x4E:  # NONE
                stack.append(None)
            case 0x88:  # NEWTRUE
                stack.append(True)
            case 0x89:  # NEWFALSE
                stack.append(False)
            case 0x4D:  # BININT2
                stack.append(_U16(data, at)[0])
                at += 2
            case 0x4A:  # BININT
                stack.append(_I32(data, at)[0])
                at += 4
            case 0x8A:  # LONG1
                size = data[at]
                if at + 1 + size > len(data):
                    raise PickleError("is cut short")
                stack.append(int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True))
                at += 1 + size
            case 0x72:  # LONG_BINPUT
                memo[_U32(data, at)[0]] = stack[-1]
                at += 4
            case 0x6A:  # LONG_BINGET
                stack.append(remembered(_U32(data, at)[0]))
                at += 4
            case 0x80:  # PROTO
                if data[at] > 4:
                    raise PickleError(f"has protocol {data[at]}")
                at += 1
            case 0x95:  # FRAME, a hint for readers of files
                at += 8
                if _U64(data, at - 8)[0] > len(data) - at:
                    raise PickleError("is cut short")
            case 0x2E:  # STOP
                if len(stack) != 1 or below or at != len(data):
                    raise PickleError("is damaged (it stops too early)")
                return stack[0]
            case _:
                name = _NAMES.get(code)
                raise PickleError(
                    f"contains {name}, but a record contains only plain values"
                    if name
                    else f"is damaged (byte {code:#04x})"
                )
    raise PickleError(f"has more than {MAX_INSTRUCTIONS} instructions")


def _set(target: Any, items: list[Any]) -> None:
    if type(target) is not dict or len(items) % 2 or not all(type(key) is str for key in items[::2]):
        raise PickleError("is damaged (a key of a dictionary is not text)")
    keys = len(target) + len(items) // 2
    target.update(zip(items[::2], items[1::2], strict=True))
    if len(target) != keys:
        # No writer does this. The values would have another order than their bytes, and layouts rely on that order.
        raise PickleError("is damaged (a dictionary has a key twice)")


def _extend(target: Any, items: list[Any]) -> None:
    if type(target) is not list:
        raise PickleError("is damaged (no list to append to)")
    target.extend(items)
