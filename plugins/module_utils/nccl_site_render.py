# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL settings as the text of a sitecustomize file: a whole file of ours, or a block in somebody else's."""

from __future__ import annotations

import ast
import re
import tokenize

from .errors import RingmasterError

WITNESS_VARIABLE = "RINGMASTER_WITNESS"
SCOPES = ("service", "interpreter")

_HEADER = b"# Ringmaster wrote this file"
_BEGIN = b"# BEGIN RINGMASTER NCCL"
_END = b"# END RINGMASTER NCCL"
_NEWLINE_ADDED = b" (the newline before this line is Ringmaster's)"
_FILE_MADE = b" (Ringmaster made this file)"
_BLOCK = re.compile(rb"(?:\A(?:\xef\xbb\xbf)?|(?<=[\r\n]))" + _BEGIN + rb"([^\r\n]*)\r?\n.*?" + _END + rb"(?:\r?\n|\Z)", re.DOTALL)
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_COOKIE = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+")
_BLANK_OR_COMMENT = re.compile(rb"[ \t\f]*(?:#[^\r\n]*)?[\r\n]*\Z")
_BOM = b"\xef\xbb\xbf"

# What runs inside the server. It must not raise: Python would drop the settings with one line on stderr.
_APPLY = '''\
def _ringmaster_apply(settings, override):
    """Put SETTINGS into the environment; returns what was applied, kept and replaced, each {name: value}."""
    import os

    applied, kept, replaced = {}, {}, {}
    for name, value in settings.items():
        try:
            found = os.environ.get(name)
            if found is None or override:
                os.environ[name] = value
            if found is None or found == value or override:
                applied[name] = value
            else:
                kept[name] = found
            if override and found not in (None, value):
                replaced[name] = found
        except Exception:
            pass
    return applied, kept, replaced


def _ringmaster_witness(file, applied, kept, replaced):
    """Tell, where RINGMASTER_WITNESS names a directory, what is in force in this process."""
    import os

    directory = os.environ.get("RINGMASTER_WITNESS")
    if not directory:
        return
    try:
        import json
        import sys

        seen = {
            "pid": os.getpid(), "ppid": os.getppid(), "file": file, "prefix": sys.prefix,
            "applied": applied, "kept": kept, "replaced": replaced,
            "nccl": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
        }
        path = os.path.join(directory, "%d.json" % os.getpid())
        temporary = path + ".new"
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as witness:
                json.dump(seen, witness)
            os.replace(temporary, path)
        except Exception:
            os.unlink(temporary)
    except Exception:
        pass
'''

_CHAIN = '''

def _ringmaster_shadowed(here):
    """The spec of the next sitecustomize on sys.path after the file HERE, or None. A file linked twice counts once."""
    import os
    import sys

    try:
        from _frozen_importlib_external import PathFinder  # in memory already; importlib would cost every start some ms
    except ImportError:
        from importlib.machinery import PathFinder
    passed, seen = False, set()
    for entry in list(sys.path):
        try:
            spec = PathFinder.find_spec("sitecustomize", [entry])
            if spec is None or spec.loader is None or not spec.origin:
                continue
            origin = os.path.realpath(spec.origin)
            if origin == os.path.realpath(here):
                passed = True
            elif passed and origin not in seen:
                return spec
            seen.add(origin)
        except Exception:
            pass
    return None


def _ringmaster_chain(here):
    """Run the shadowed sitecustomize as if this file did not exist: it takes the module's name, and its errors are Python's."""
    spec = _ringmaster_shadowed(here)
    if spec is None:
        return
    import sys

    try:
        from _frozen_importlib import module_from_spec
    except ImportError:
        from importlib.util import module_from_spec
    module = module_from_spec(spec)
    module.__ringmaster__ = here
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)
'''


def _literal(settings: dict[str, str], override: bool) -> str:
    """The arguments of _ringmaster_apply as source, ASCII only. Raises RingmasterError for what the environment cannot hold."""
    for name, value in settings.items():
        if not re.fullmatch(r"NCCL_[A-Z0-9_]+", name):
            raise RingmasterError(f"'{name}' is not the name of an NCCL variable.", "Names start with NCCL_ and are written in capitals.")
        if not isinstance(value, str) or re.search(r"[\0\r\n]", value):
            raise RingmasterError(f"The value {value!r} of {name} cannot be rendered.", "Give text without line breaks and NUL characters.")
    lines = "".join(f'    "{name}": {ascii(value)},\n' for name, value in sorted(settings.items()))
    return f"{{\n{lines}}}, {override}" if lines else f"{{}}, {override}"


def render(settings: dict[str, str], *, override: bool, chain: bool) -> bytes:
    """The whole sitecustomize.py for a directory on one server's PYTHONPATH. Raises RingmasterError for a bad name or value."""
    run = "_ringmaster_chain(__file__)" if chain else "pass"
    return (
        f"{_HEADER.decode()} (scope service): NCCL settings of the one server whose PYTHONPATH names this directory.\n"
        "# Do not edit it, the next run replaces it. What was set before stays, unless the settings say override.\n"
        f"\n\n{_APPLY}{_CHAIN if chain else ''}\n\n"
        f"_RINGMASTER = _ringmaster_apply({_literal(settings, override)})\n"
        f"try:\n    {run}\nfinally:\n    _ringmaster_witness(__file__, *_RINGMASTER)\n"
    ).encode("ascii")


def render_block(settings: dict[str, str], override: bool) -> bytes:
    """The block for merge(): the settings, before the code of the file's owner, leaving no name behind."""
    return (
        f"{_BEGIN.decode()}\n# The next run replaces all between these two marks; nccl_state=absent takes it out again.\n"
        f"{_APPLY}\n\n"
        f'_ringmaster_witness(globals().get("__file__"), *_ringmaster_apply({_literal(settings, override)}))\n'
        f"del _ringmaster_apply, _ringmaster_witness\n{_END.decode()}\n"
    ).encode("ascii")


def is_ours(content: bytes) -> bool:
    """Whether CONTENT is a whole file that render() made."""
    return content.startswith(_HEADER)


def foreign_part(content: bytes) -> bytes | None:
    """CONTENT without our block, byte for byte as its owner left it; None when the whole file exists because of us.

    Raises RingmasterError when the marks do not pair up.
    """
    blocks = list(_BLOCK.finditer(content))
    if len(blocks) > 1 or content.count(_BEGIN) != len(blocks) or content.count(_END) != len(blocks):
        raise RingmasterError(
            f"The marks '{_BEGIN.decode()}' and '{_END.decode()}' in the sitecustomize file do not form one block.",
            "Somebody edited them: remove the block by hand, marks included.",
        )
    if not blocks:
        return content
    block = blocks[0]
    start = block.start() + (len(_BOM) if block.group().startswith(_BOM) else 0)
    before, after, note = content[:start], content[block.end() :], block.group(1)
    if note == _NEWLINE_ADDED and not after:
        before = re.sub(rb"\r?\n\Z", b"", before)
    foreign = before + after
    return None if note == _FILE_MADE and not foreign else foreign


def merge(existing: bytes | None, block: bytes | None) -> bytes | None:
    """EXISTING (None: no file) with BLOCK (None: without one). `merge(merge(x, block), None) == x` for every x without a block.

    The block stands as early as Python allows: after an encoding cookie, the docstring and __future__ imports, so that it runs
    even when the owner's code raises. Raises RingmasterError when EXISTING cannot be read as Python, or its marks are damaged.
    """
    foreign = None if existing is None else foreign_part(existing)
    if block is None:
        return foreign
    if foreign is None:
        return block.replace(_BEGIN, _BEGIN + _FILE_MADE, 1)
    place = _place(foreign)
    before, after = foreign[:place], foreign[place:]
    if before and before != _BOM and not before.endswith((b"\n", b"\r")):
        return before + b"\n" + block.replace(_BEGIN, _BEGIN + _NEWLINE_ADDED, 1)
    return before + block + after


def desired(scope: str, settings: dict[str, str] | None, override: bool, current: bytes | None) -> bytes | None:
    """What the sitecustomize file of SCOPE shall hold, given what it holds (None: no file). SETTINGS None: nothing of ours."""
    if scope == "service":
        return None if settings is None else render(settings, override=override, chain=True)
    return merge(current, None if settings is None else render_block(settings, override))


def _place(source: bytes) -> int:
    """The offset of the first line on which other code than a docstring or a __future__ import may stand."""
    lines = _LINE.findall(source)
    rows = 0  # lines that must stay ahead of the block
    if lines and lines[0].startswith(b"#!"):
        rows = 1
    if lines and _COOKIE.match(lines[0].removeprefix(_BOM)):
        rows = 1
    elif len(lines) > 1 and _BLANK_OR_COMMENT.match(lines[0].removeprefix(_BOM)) and _COOKIE.match(lines[1]):
        rows = 2
    rows = max(rows, _last_preamble_row(lines))
    return max(sum(map(len, lines[:rows])), len(_BOM) if source.startswith(_BOM) else 0)


def _last_preamble_row(lines: list[bytes]) -> int:
    """The row (from 1) on which the docstring or the last __future__ import ends, 0 without any.

    Token by token and no further than needed: the file may be for a newer Python than the one that runs this.
    """
    readable = iter([line.rstrip(b"\r\n") + b"\n" for line in lines])  # every Python's tokenizer knows this line end
    row, statement = 0, []
    try:
        for token in tokenize.tokenize(lambda: next(readable, b"")):
            if token.type == tokenize.NEWLINE and statement:
                if not _is_preamble(statement, first=row == 0):
                    break
                row, statement = token.end[0], []
            elif token.type not in (tokenize.COMMENT, tokenize.NEWLINE, tokenize.NL, tokenize.ENCODING):
                statement.append(token)
                if token.type == tokenize.ENDMARKER or token.type not in (tokenize.STRING, tokenize.NAME, tokenize.OP):
                    break
    except (SyntaxError, tokenize.TokenError, UnicodeDecodeError) as error:
        raise RingmasterError(f"The sitecustomize file is not Python: {error}.", "Mend or remove it; Python ignores it.") from error
    return row


def _is_preamble(statement: list[tokenize.TokenInfo], first: bool) -> bool:
    words = [token.string for token in statement]
    if any(token.string == ";" for token in statement if token.type == tokenize.OP):
        return False
    if words[:3] == ["from", "__future__", "import"]:
        return True
    if not first or any(token.type != tokenize.STRING for token in statement):
        return False
    try:
        return isinstance(ast.literal_eval(" ".join(words)), str)
    except (ValueError, SyntaxError):  # an f-string
        return False
