# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One value of one NCCL variable: the text to write, or why NCCL would not do what it says.

Pure. What NCCL does with a value is in data/nccl_params.yml; integers are read as src/misc/param.cc reads them (strtoll, base 0, the
rest of the text ignored), lists as parseList of src/graph/tuning.cc does.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
MAX_LENGTH = 1023
INT64 = range(-(2**63), 2**63)
SIZE = re.compile(r"([0-9]+) ?([KMG])(?:i?B)?", re.IGNORECASE)
PLAIN_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0|[1-9][0-9]*)")
C_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
SHIFTS = {"K": 10, "M": 20, "G": 30}
SWITCH = {"true": "1", "yes": "1", "on": "1", "t": "1", "false": "0", "no": "0", "off": "0", "f": "0"}
CONTROL = {"\n": "a line break", "\r": "a line break", "\0": "a NUL character", "\u2028": "a line break", "\u2029": "a line break",
           "\x85": "a line break", "\x0b": "a line break", "\x0c": "a line break"}

Version = tuple[int, ...] | None


class Bad(Exception):
    """A value that NCCL would refuse, ignore or read as something else. The text says what was found and what to write."""


@dataclass
class Text:
    """What to write, and what to say besides."""

    text: str
    warnings: list[str] = field(default_factory=list)


def parse_version(text: Any) -> Version:
    """`2.28.9`, `2.28.9-1`, `2.28.9+cuda13.0` → (2, 28, 9). None when there is no version in it."""
    match = re.match(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?", str(text or ""))
    return tuple(int(part) for part in match.groups() if part is not None) if match else None


def at_least(version: Version, bound: str, unknown: bool = True) -> bool:
    """Whether a version is `bound` or newer; as many numbers are compared as both have. `unknown` is the answer without a version."""
    if version is None:
        return unknown
    wanted = parse_version(bound) or ()
    shared = min(len(version), len(wanted))
    return version[:shared] >= wanted[:shared]


def shown(raw: Any) -> str:
    """What was found, on one line and short."""
    text = ascii(raw) if isinstance(raw, str) and not raw.isprintable() else repr(raw)
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The word that was probably meant, whatever its case."""
    by_case = {known.lower(): known for known in words}
    found = difflib.get_close_matches(word.lower(), sorted(by_case), n=1, cutoff=cutoff)
    return by_case[found[0]] if found else None


def hint(word: str, words: Iterable[str]) -> str:
    guess = nearest(word, words, cutoff=0.5)
    return f"; did you mean {guess}?" if guess else ""


def nccl_reads(text: str) -> int:
    """The number that NCCL up to 2.31 takes from a text (0 when there is none)."""
    match = C_INTEGER.match(text)
    if not match:
        return 0
    sign, digits = match.groups()
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    return int(digits, base) * (-1 if sign == "-" else 1)


def plain_text(raw: Any) -> str:
    """A value as text that survives an environment and a line of Python. Raises Bad."""
    if isinstance(raw, (list, tuple, set, dict)):
        raise Bad(f"{shown(raw)} is a {type(raw).__name__}; give one value (elements of a list are joined by commas: \"a,b\").")
    text = str(raw)
    for char in text:
        if char in CONTROL or ord(char) < 32 or ord(char) == 127:
            raise Bad(f"{shown(text)} holds {CONTROL.get(char, 'a control character')}; a setting is one line of plain text.")
    if not text.isprintable():
        raise Bad(f"{shown(text)} holds a character that cannot be printed; a setting is one line of plain text.")
    if len(text) > MAX_LENGTH:
        raise Bad(f"{shown(text)} has {len(text)} characters; NCCL's own configuration files hold at most {MAX_LENGTH}.")
    return text


def coerce(name: str, raw: Any, param: dict[str, Any], version: Version = None) -> Text:
    """The text for one variable. `param` is its entry in the catalogue, `version` NCCL's (None: not known). Raises Bad."""
    text = plain_text(raw)
    if param.get("unverified"):
        return Text(text, ["NCCL has a variable of this name, but neither its type nor its range is documented."])
    if param["kind"] in ("int", "bool"):
        return _number(name, raw, text, param, version)
    if isinstance(raw, (bool, float)) and not param.get("pattern"):
        raise Bad(f"{shown(raw)} is not text; put it in quotes if it is meant.")
    return _KINDS[param["kind"]](name, text, param, version)


# numbers


def integer(raw: Any, text: str, also: str = "") -> int:
    """An integer written so that NCCL and a person read the same number. Raises Bad; `also` names other forms that are accepted."""
    stripped = text.strip(" ")
    if not isinstance(raw, (bool, float)) and PLAIN_INTEGER.fullmatch(stripped):
        return int(stripped, 16 if "x" in stripped.lower() else 10)
    if C_INTEGER.match(text):
        reads = f"NCCL would read it as {nccl_reads(text)}"
    else:
        reads = "NCCL before 2.32 would read it as 0, newer ones keep their default"
    raise Bad(f"{shown(raw)} is not a plain decimal integer{also}; {reads}.")


def _number(name: str, raw: Any, text: str, param: dict[str, Any], version: Version) -> Text:
    size = SIZE.fullmatch(text.strip(" ")) if param.get("unit") == "bytes" else None
    switch = param["kind"] == "bool" or name.endswith(("_ENABLE", "_DISABLE"))
    if switch and text.strip().lower() in SWITCH:
        number = int(SWITCH[text.strip().lower()])
    elif size:
        number = int(size[1]) << SHIFTS[size[2].upper()]
    else:
        number = integer(raw, text, " or a size such as 16M" if param.get("unit") == "bytes" else "")
    if number not in INT64:
        raise Bad(f"{shown(raw)} does not fit 64 bits; NCCL would keep its default.")
    _in_range(raw, number, param, version)
    low, high = param.get("advice_range", (number, number))
    warnings = [] if low <= number <= high else [f"{number} {param.get('unit', '')} is far from anything usual ({low} to {high})."]
    return Text(str(number), warnings)


def _in_range(raw: Any, number: int, param: dict[str, Any], version: Version) -> None:
    why = f": {param['why']}" if "why" in param else ""
    values = param.get("values") or ([0, 1] if param["kind"] == "bool" else None)
    if values and number not in values:
        raise Bad(f"{shown(raw)} is not one of {', '.join(map(str, values))}{why}.")
    if "range" in param:
        low, high = _range(param, version)
        if not low <= number <= high:
            then = param.get("above" if number > high else "below", "")
            raise Bad(f"{shown(raw)} is not between {low} and {high}{'; ' + then.format(high=high) if then else ''}.")
    times = param.get("times", 1)
    if param.get("power_of_two") and number != param.get("default"):
        quotient, rest = divmod(number, times)
        if rest or quotient < 1 or quotient & (quotient - 1):
            form = f"{times} times a power of two" if times > 1 else "a power of two"
            raise Bad(f"{shown(raw)} is not {form}{why}.")
    if number % param.get("multiple_of", 1):
        raise Bad(f"{shown(raw)} is not a multiple of {param['multiple_of']}{why}.")


def _range(param: dict[str, Any], version: Version) -> list[int]:
    for bound, old in param.get("range_before", {}).items():
        if not at_least(version, bound):
            return old
    return param["range"]


# words


def _words(param: dict[str, Any], version: Version) -> list[str]:
    """The words that this version takes; without a version, those of the newest."""
    known = dict.fromkeys([str(value) for value in param.get("values", ())])
    known.update(dict.fromkeys(param.get("value_since", ())))
    return [word for word in known if _in_span(version, param.get("value_since", {}).get(word, ""))]


def _in_span(version: Version, span: str) -> bool:
    since, _dash, until = span.partition("-")
    if version is None:
        return not until or at_least(parse_version(until), "2.27")  # no server of today brings anything older
    return (not since or at_least(version, since)) and (not until or at_least(parse_version(until), ".".join(map(str, version[:2]))))


def _word(found: str, param: dict[str, Any], version: Version) -> str:
    """The spelling that NCCL knows, whatever the case given. Raises Bad with the nearest one."""
    words = _words(param, version)
    for word in words:
        if word.lower() == found.lower():
            return word
    if any(char.isspace() for char in found):
        raise Bad(f"{shown(found)} holds a space, which NCCL does not trim; write it without.")
    for word, span in param.get("value_since", {}).items():
        if word.lower() == found.lower():
            raise Bad(f"{shown(found)} exists in NCCL {span}{'' if '-' in span else ' and newer'} only; this one has {', '.join(words)}.")
    then = f"; {param['on_unknown']}" if "on_unknown" in param else ""
    choices = [*(words or param.get("integers", ())), *filter(None, [param.get("format")])]
    raise Bad(f"{shown(found)} is not one of {', '.join(choices)}{then}{hint(found, words)}")


def _enum(name: str, text: str, param: dict[str, Any], version: Version) -> Text:
    if re.fullmatch(param.get("pattern", "(?!)"), text, re.IGNORECASE):
        return Text(text.upper())
    if text in param.get("integers", {}):
        words_known = at_least(version, param.get("string_values_since", "0.0")) and _words(param, version)
        return Text(param["integers"][text] if words_known else text)
    if "string_values_since" in param and not at_least(version, param["string_values_since"]):
        numbers = ", ".join(param["integers"])
        raise Bad(f"{shown(text)}: NCCL before {param['string_values_since']} reads words as 0; write one of {numbers}.")
    separator = param.get("separator")
    words = [_word(found, param, version) for found in (text.split(separator) if separator else [text])]
    odd = [word for word in words if word not in param.get("documented_values", words)]
    return Text((separator or "").join(words), [f"{word} is accepted by NCCL but not documented." for word in odd])


def _list(name: str, text: str, param: dict[str, Any], version: Version) -> Text:
    if name in ("NCCL_ALGO", "NCCL_PROTO"):
        return Text(_render_lists(name, parse_lists(text, param, version)))
    if any(char.isspace() for char in text):
        raise Bad(f"{shown(text)} holds a space, which NCCL does not trim; separate by commas alone.")
    sign, body = re.fullmatch(r"(\^?=?)(.*)", text).groups()
    items = body.split(",")
    if any(not item or item[0] in "^=" for item in items):
        raise Bad(f"{shown(text)} has an empty element, or a '^' or '=' that is not at the very front ('^' first).")
    if "values" in param:
        items = [_word(item, param, version) for item in items]
    if len(text) < param.get("min_length", 0):
        raise Bad(f"{shown(text)} is too short: NCCL ignores values of one character.")
    too_long = [item for item in items if len(item.split(":")[0]) > param.get("item_max_length", MAX_LENGTH)]
    if too_long:
        raise Bad(f"{shown(too_long[0])} is longer than the {param['item_max_length']} characters of an interface name; nothing can match.")
    if len(items) > param.get("max_items", MAX_LENGTH):
        raise Bad(f"{len(items)} elements are given; NCCL reads {param['max_items']}.")
    return Text(sign + ",".join(items))


def _string(name: str, text: str, param: dict[str, Any], version: Version) -> Text:
    if "pattern" in param and not re.fullmatch(param["pattern"], text):
        raise Bad(f"{shown(text)} is not of the form {param['format']}.")
    return Text(text)


def _path(name: str, text: str, param: dict[str, Any], version: Version) -> Text:
    if text.startswith("~") and param.get("no_tilde"):
        raise Bad(f"{shown(text)}: NCCL does not expand '~'; write the whole path.")
    return Text(text)


_KINDS = {"enum": _enum, "list": _list, "str": _string, "path": _path}


# NCCL_ALGO and NCCL_PROTO


@dataclass(frozen=True)
class Entry:
    """One entry of such a list: `function` None means every collective."""

    function: str | None
    inverted: bool
    elements: tuple[str, ...]


def parse_lists(text: str, param: dict[str, Any], version: Version = None) -> list[Entry]:
    """`[func:][^]elem,...;func:...` as NCCL parses it. Raises Bad for whatever NCCL would refuse or read otherwise."""
    if any(char.isspace() for char in text):
        raise Bad(f"{shown(text)} holds a space, which NCCL does not trim; write {shown(''.join(text.split()))}.")
    if not at_least(version, "2.24") and (";" in text or ":" in text):
        raise Bad(f"{shown(text)}: NCCL before 2.24 knows no lists per collective and ignores them; write one plain list.")
    return [_entry(part, index, text, param, version) for index, part in enumerate(text.split(";"))]


def _entry(part: str, index: int, text: str, param: dict[str, Any], version: Version) -> Entry:
    fields = part.split(":")
    if len(fields) > 2:
        raise Bad(f"{shown(text)}: NCCL drops what follows a second ':'; separate collectives by ';'.")
    function = None
    if len(fields) == 2:
        function = next((known for known in FUNCTIONS if known.lower() == fields[0].lower()), None)
        if function is None:
            raise Bad(f"{shown(fields[0])} is not one of {', '.join(FUNCTIONS)}{hint(fields[0], FUNCTIONS)}")
    elif index:
        raise Bad(f"{shown(text)}: only the first entry may lack a collective; NCCL refuses {shown(part)} without one.")
    inverted = fields[-1].startswith("^")
    elements = fields[-1].removeprefix("^").split(",")
    if not all(elements):
        raise Bad(f"{shown(text)} has an empty element; write names separated by single commas.")
    if any("^" in element for element in elements):
        raise Bad(f"{shown(text)}: '^' stands once, in front of the whole list, and excludes all of it.")
    return Entry(function, inverted, tuple(_word(element, param, version) for element in elements))


def _render_lists(name: str, entries: list[Entry]) -> str:
    per_function = any(entry.function for entry in entries)
    text = ";".join((f"{e.function.lower()}:" if e.function else "") + "^" * e.inverted + ",".join(e.elements) for e in entries)
    return text.lower() if per_function and name == "NCCL_ALGO" else text  # allreduce:tree is how NCCL's guide and SGLang write it


def enabled(entries: list[Entry], universe: Iterable[str], base: Iterable[str]) -> dict[str, set[str]]:
    """{function: elements left enabled}. `base` is what a collective that no entry names keeps."""
    found = {function: set(base) for function in FUNCTIONS}
    for entry in entries:
        for function in [entry.function] if entry.function else FUNCTIONS:
            found[function] = set(universe) - set(entry.elements) if entry.inverted else set(entry.elements)
    return found


def named(entries: list[Entry]) -> Iterator[str]:
    """The collectives that an entry speaks of."""
    for entry in entries:
        yield from [entry.function] if entry.function else FUNCTIONS
