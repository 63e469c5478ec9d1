"""Text of other programs (clients, files, peers) for a terminal, a log or a page.

A character that a terminal acts upon (control characters, escape sequences), that starts a new line
of a log, or that changes the order of the text around it is shown as an escape such as \\x1b.

Source: Unicode Standard, chapter 23.2 and 23.3 (format characters); Unicode Technical Report 36.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

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


_LEFT = ' style="text-align: left"'


def table(title: str, facts: Mapping[str, object], text: str = "") -> str:
    """Return HTML for a notebook (`_repr_html_`): a table with a row for each fact, and a text of
    several lines below it, all escaped."""
    rows = "".join(
        f"<tr><th{_LEFT}>{_markup(name)}</th><td{_LEFT}>{_markup(str(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    below = f"<pre>{_markup(text)}</pre>" if text else ""
    return f"<table><caption{_LEFT}>{_markup(title)}</caption>{rows}</table>{below}"


def _markup(text: str) -> str:
    return escape(lines(text))
