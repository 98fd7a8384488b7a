# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the texts of systemd say by its own rules: the files of a unit, what it shows of one, and files for EnvironmentFile=."""

from __future__ import annotations

import re

# What systemctl takes for a kind of unit; any other name, also one with a dot, it takes for that of a service.
KINDS = (".service", ".socket", ".target", ".device", ".mount", ".automount", ".swap", ".path", ".timer", ".slice", ".scope")


def exec_start(text):
    """The argument list of the last ExecStart line in the TEXT of a unit's files; empty where its quotes do not close."""
    return [_SIGN.sub(lambda sign: sign[0][1:] if sign[0] in _LITERAL else sign[0], word) for word in _exec_start_words(text)]


def unresolved(text):
    """The specifiers and variables in the last ExecStart line in the TEXT of a unit's files."""
    return [sign for word in _exec_start_words(text) for sign in _SIGN.findall(word) if sign not in _LITERAL]


_LITERAL = ("%%", "$$")
_SIGN = re.compile(r"%%|\$\$|%[A-Za-z]|\$\{[^}]*\}|^\$[A-Za-z_]\w*$")  # a variable without braces is one only as a word of its own


def _exec_start_words(text):
    lines = [line.lstrip(_BLANK) for line in re.split(r"\r?\n", text)]
    text = "\n".join(line for line in lines if not line.startswith(("#", ";")))  # also amid a continued line, so before lines are joined
    found = []
    for line in re.sub(r"\\(.)", lambda pair: " " if pair[1] == "\n" else pair[0], text, flags=re.DOTALL).split("\n"):
        name, _sign, value = line.partition("=")
        if name.rstrip(_BLANK) == "ExecStart":
            found = words(value.strip(_BLANK).lstrip("@-:+!|")) or []
    return found


_BLANK = " \t\r\n"
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " ", **{sign: sign for sign in "\\\"'$`"}}
_ESCAPE = re.compile(r"""\\(?:([abfnrtvs\\"'$`])|x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))""")


def words(text):
    """The words of TEXT by systemd's rules for quotes and escapes, in a unit's files and in what it shows; None where no quote closes."""
    found, word, quote, at = [], None, "", 0
    while at < len(text):
        escape, sign = _ESCAPE.match(text, at), text[at]
        at = escape.end() if escape else at + 1
        if not (escape or quote) and sign in _BLANK:
            found, word = found if word is None else [*found, word], None
        elif not (escape or quote) and sign in "\"'":
            quote, word = sign, word or ""
        elif not escape and sign == quote:
            quote = ""
        else:
            word = (word or "") + (_unescaped(escape) if escape else sign)
    found = found if word is None else [*found, word]
    return None if quote else [word.encode(errors="surrogateescape").decode(errors="replace") for word in found]


def _unescaped(escape):
    letter, byte, octal, *point = escape.groups()
    if letter:
        return _ESCAPED[letter]
    if byte or octal:  # a byte, and maybe a part of a character: all of a word's are decoded together
        return bytes([int(byte, 16) if byte else int(octal, 8) & 255]).decode(errors="surrogateescape")
    number = int(point[0] or point[1], 16)
    return chr(number) if number < 0xD800 or 0xDFFF < number < 0x110000 else "\ufffd"


# --- environment files: other rules for quotes and backslashes than in a unit ---------------------------------

_QUOTED = re.compile(r"""[ \t]*(?:'([^']*)(?:'|\Z)|"((?:[^"\\]|\\.)*)(?:"|\\?\Z))""", re.DOTALL)
_ENTRY = re.compile(
    r"""[ \t\r\n]* (?:
        [#;] [^\r\n]*
        | (?P<name> [^=\r\n]+) =
          (?P<quoted> (?: [ \t]* (?: '[^']*(?:'|\Z) | "(?:[^"\\]|\\.)*(?:"|\\?\Z) ) )*)  # quotes are such only where a value starts
          [ \t]* (?P<rest> (?:[^\\\r\n]|\\.)*?) [ \t]* (?: (?=[\r\n]) | \\?\Z )
        | [^\r\n]+  # no assignment
    )""",
    re.DOTALL | re.VERBOSE,
)


def environment_file(text):
    """{name: value} of the TEXT of an environment file, without the lines that systemd leaves out."""
    found = {}
    for entry in _ENTRY.finditer(text):
        name = (entry["name"] or "").rstrip()
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            parts = [single or _DOUBLE.sub(r"\1", double) for single, double in _QUOTED.findall(entry["quoted"])]
            found[name] = "".join(parts) + _BARE.sub(r"\1", entry["rest"])
    return found


_DOUBLE = re.compile(r"""\\(?:\n|(["\\`$]))""")  # any other backslash stays
_BARE = re.compile(r"\\(?:[\r\n]|(.))")
