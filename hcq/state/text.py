"""Text of other programs (clients, files, peers) for a terminal, a log or a page.

A character that a terminal acts upon (control characters, escape sequences), that starts a new line
of a log, or that changes the order of the text around it is shown as an escape such as \\x1b.

Source: Unicode Standard, chapter 23.2 and 23.3 (format characters); Unicode Technical Report 36.
"""

from __future__ import annotations

import re

# C0, DEL and C1; line and paragraph separators; bidirectional controls; zero-width characters;
# surrogates, which UTF-8 cannot encode; the byte order mark; tags.
_UNSAFE = (
    "\\x00-\\x1f\\x7f-\\x9f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ud800-\\udfff\\ufeff\\ufff9-\\ufffb\\U000e0000-\\U000e007f"
)
_LINE = re.compile(f"[{_UNSAFE}]")
_LINES = re.compile(f"(?![\\n\\t])[{_UNSAFE}]")


def one_line(text: str) -> str:
    """Return the text with unsafe characters, new lines and tabs escaped."""
    return text if text.isascii() and text.isprintable() else _LINE.sub(_escape, text)


def lines(text: str) -> str:
    """Return a text of several lines, with unsafe characters escaped but new lines and tabs
    kept."""
    return text if text.isascii() and text.isprintable() else _LINES.sub(_escape, text)


def is_plain(text: str) -> bool:
    """Return whether the text has no character that `one_line` escapes."""
    return _LINE.search(text) is None


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
