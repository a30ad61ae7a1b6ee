r"""Mend the known ways in which profilers wrote text that is almost JSON.

Raw control bytes, bytes that are not UTF-8, single backslashes (Windows paths), quotes left
unescaped in a name, fractions with a sign inside (``0.-660``, a negative count of nanoseconds
printed by halves), and ``nan`` or ``inf`` for a number. Each mend is counted by what it was. What
a string meant is kept: nothing is cut out of it except bytes that are no text at all, which
become U+FFFD. A backslash followed by a letter that JSON knows (``\n``) is read as JSON says,
unless the same string holds a backslash that shows it was never escaped.
"""

from __future__ import annotations

import re
from collections import Counter

__all__ = ["repair"]

_SPLIT_FRACTION = re.compile(r"(-?)(\d+)\.-(\d{1,3})(?![\d.])")
_NOT_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:nan|NaN|NAN|inf|Inf|INF|Infinity|infinity)(?![\w.])")
_KEY_END = re.compile(r"\s*:")
_VALUE_END = re.compile(r'\s*(?:\}|,\s*"[^"\n]*"\s*:|$)')
_ITEM_END = re.compile(r'\s*(?:\]|,\s*(?:["\[{\d-]|true|false|null))')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PAIR = re.compile(r"\\\\")


def repair(text: bytes) -> tuple[bytes, dict[str, int]]:
    """Return the mended text of one JSON object and what was mended, how often.

    The result may still not be JSON; the caller decodes it to know.
    """
    fixes: Counter[str] = Counter()
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        decoded = text.decode("utf-8", "replace")
        fixes["bytes that are not UTF-8 replaced"] += 1
    out: list[str] = []
    containers: list[str] = []
    place = 0
    after_colon = False
    while place < len(decoded):
        char = decoded[place]
        if char == '"':
            if containers and containers[-1] == "[":
                ending = _ITEM_END
            else:
                ending = _VALUE_END if after_colon else _KEY_END
            end = _string_end(decoded, place + 1, ending)
            out.append('"' + _string(decoded[place + 1 : end], fixes) + '"')
            after_colon = False
            place = end + 1
            continue
        stop = decoded.find('"', place)
        stop = len(decoded) if stop < 0 else stop
        plain = decoded[place:stop]
        for mark in plain:
            if mark in "{[":
                containers.append(mark)
            elif mark in "}]" and containers:
                containers.pop()
        after_colon = plain.rstrip().endswith(":")
        out.append(_numbers(plain, fixes))
        place = stop
    return "".join(out).encode(), dict(fixes)


def _string_end(text: str, start: int, ending: re.Pattern[str]) -> int:
    """Offset of the quote that closes the string begun before ``start``."""
    quote = text.find('"', start)
    while quote >= 0:
        if ending.match(text, quote + 1):
            slashes = quote - len(text[start:quote].rstrip("\\")) - start
            # An escaped quote ends a string only where what follows cannot be text: a Windows
            # folder "C:\dir\" is far likelier than a name with , "key": in it.
            if slashes % 2 == 0 or not _plausible_escape(text[start:quote]):
                return quote
        quote = text.find('"', quote + 1)
    return len(text)


def _plausible_escape(body: str) -> bool:
    """Whether a string up to a backslash-quote looks escaped rather than raw."""
    rest = _ESCAPE.sub("", body[:-1])
    return "\\" not in rest and ":\\" not in body


def _string(body: str, fixes: Counter[str]) -> str:
    unknown = _ESCAPE.sub("", body)
    if "\\" in unknown:
        fixes["single backslash escaped"] += 1
        body = body.replace("\\", "\\\\")
        escaped = _PAIR
    else:
        escaped = _ESCAPE
    pieces, place = [], 0
    for match in escaped.finditer(body):
        pieces += [_plain_text(body[place : match.start()], fixes), match[0]]
        place = match.end()
    pieces.append(_plain_text(body[place:], fixes))
    return "".join(pieces)


def _plain_text(text: str, fixes: Counter[str]) -> str:
    if '"' in text:
        fixes["unescaped quote escaped"] += text.count('"')
        text = text.replace('"', '\\"')
    if any(char < " " for char in text):
        fixes["raw control byte escaped"] += sum(char < " " for char in text)
        text = "".join(f"\\u{ord(char):04x}" if char < " " else char for char in text)
    return text


def _numbers(plain: str, fixes: Counter[str]) -> str:
    def join(match: re.Match[str]) -> str:
        fixes["fraction with a sign inside read as negative"] += 1
        # Written as quotient and remainder of a negative count of ns, each with its own sign.
        value = -(int(match[2]) * 1000 + int(match[3]))
        return f"-{-value // 1000}.{-value % 1000:03d}"

    plain = _SPLIT_FRACTION.sub(join, plain)
    plain, unknown = _NOT_NUMBER.subn("null", plain)
    if unknown:
        fixes["not-a-number read as unknown"] += unknown
    return plain
