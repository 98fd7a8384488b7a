# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which sitecustomize an interpreter runs, where ours belongs, and whether its settings are in force: always by asking that interpreter.

Only the first sitecustomize on sys.path runs, and Debian's in /usr/lib/python3.X shadows one in the site-packages of every
venv made from that Python (site.py; tried on Debian 12).
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence

from . import procfs
from .errors import RingmasterError
from .nccl_site_render import WITNESS_VARIABLE, desired, foreign_part, is_ours, merge, render, render_block

__all__ = [
    "compare", "compile_check", "desired", "foreign_part", "is_ours", "merge", "probe", "read_back", "rehearse",
    "remove_stale_bytecode", "render", "render_block", "target_file", "users_of", "verify",
]

_MARK = "RINGMASTER-PROBE "
# The path that -c puts ahead was not there when site ran.
_PROBE = f"""
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import json, os, sysconfig
from importlib.machinery import PathFinder
def file_of(name):
    module = sys.modules.get(name)
    return getattr(module, "__ringmaster__", None) or getattr(module, "__file__", None)
module = sys.modules.get("sitecustomize")
found = []
for entry in sys.path:
    spec = PathFinder.find_spec("sitecustomize", [entry])
    if spec and spec.loader and spec.origin and spec.origin not in found:
        found.append(spec.origin)
site_file = file_of("sitecustomize") or (found[0] if found and not sys.flags.no_site else None)
sys.stdout.write("\\n{_MARK}" + json.dumps(dict(
    pid=os.getpid(), chained=hasattr(module, "__ringmaster__") and module.__file__ or None, user_file=file_of("usercustomize"),
    version="%d.%d.%d" % sys.version_info[:3], executable=sys.executable, prefix=sys.prefix,
    base_prefix=sys.base_prefix, site_file=site_file, site_real=site_file and os.path.realpath(site_file), shadowed=found,
    nccl=dict((k, v) for k, v in os.environ.items() if k.startswith("NCCL_")),
    stdlib=sysconfig.get_path("stdlib"), purelib=sysconfig.get_path("purelib"), path=sys.path,
    ignores_environment=bool(sys.flags.ignore_environment), no_site=bool(sys.flags.no_site))) + "\\n")
"""
_COMPILE = "import sys; compile(sys.stdin.buffer.read(), sys.argv[1], 'exec', dont_inherit=True)"


def _run(python, arguments, environment, stdin=b"", timeout_s=30.0, identity=None):
    """CompletedProcess of PYTHON in a clean environment plus ENVIRONMENT, writing no bytecode; the usual failures explained."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        return subprocess.run(
            [python, "-B", *arguments], input=stdin, env={**clean, "LANG": "C.UTF-8", **(environment or {})},
            cwd="/", capture_output=True, timeout=timeout_s, check=False, **(identity or {}),
        )
    except (OSError, subprocess.SubprocessError) as error:
        reasons = {
            FileNotFoundError: "is not there",
            PermissionError: "is not executable",
            subprocess.TimeoutExpired: f"did not answer in {timeout_s:g} s",
        }
        reason = reasons.get(type(error), f"is not an interpreter: {error}")
        raise RingmasterError(f"{python} {reason}.", "Give the path of the Python that runs the server (nccl_python).") from error


def probe(
    python: str, *, environment: dict[str, str] | None = None, flags: Sequence[str] = (), identity: dict | None = None,
    timeout_s: float = 30.0,
) -> dict:
    """What the interpreter PYTHON says of itself, started in a clean environment plus ENVIRONMENT.

    IDENTITY is subprocess's {user, group, extra_groups}: root must not run the code of somebody else's interpreter as root.
    Returns {pid, version, executable, prefix, base_prefix, site_file (the sitecustomize that ran, or None), site_real (its real
    path), shadowed (every sitecustomize on sys.path, in order), chained (the one that ours ran in turn, or None), user_file, nccl
    {NCCL_*: value}, stdlib, purelib, path, ignores_environment, no_site, errors (stderr)}. Raises RingmasterError when it does not start.
    """
    done = _run(python, [*flags, "-c", _PROBE], environment, timeout_s=timeout_s, identity=identity)
    output, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip()
    if done.returncode or _MARK not in output:
        last = (errors.splitlines() or ["no message"])[-1]
        raise RingmasterError(f"{python} did not answer as Python 3 does (exit {done.returncode}): {last}", "Start it by hand to see more.")
    answer, _end = json.JSONDecoder().raw_decode(output[output.rindex(_MARK) + len(_MARK) :])
    return {**answer, "errors": errors}


def target_file(scope: str, *, python: str, site_dir: str, found: dict | None = None) -> str:
    """The path of our file: in SITE_DIR (scope service), or what the interpreter PYTHON imports, at its real path.

    FOUND is a probe() of it, where there is one already. Raises RingmasterError when that is not a Python source file, or when a
    new one would not be run.
    """
    if scope == "service":
        return os.path.join(site_dir, "sitecustomize.py")
    found = found or probe(python)
    if found["no_site"]:
        raise RingmasterError(f"{found['executable']} runs no sitecustomize.", "Use nccl_scope=service with another interpreter.")
    if found["site_real"]:
        if not found["site_real"].endswith(".py"):
            raise RingmasterError(f"{found['executable']} imports {found['site_real']}, which is not source.", "Use nccl_scope=service.")
        return found["site_real"]
    if found["purelib"] not in found["path"]:
        raise RingmasterError(f"{found['executable']} does not look into its own {found['purelib']}.", "Use nccl_scope=service.")
    return os.path.join(found["purelib"], "sitecustomize.py")


def compile_check(python: str, content: bytes, path: str) -> None:
    """Raise RingmasterError unless the interpreter PYTHON itself compiles CONTENT as the file PATH."""
    done = _run(python, ["-I", "-S", "-c", _COMPILE, path], None, stdin=content)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise RingmasterError(f"{path} would not compile in {python}: {last}.", "Mend the foreign part of it, or use nccl_scope=service.")


def read_back(python: str, environment: dict[str, str], flags: Sequence[str] = ()) -> dict:
    """probe() in ENVIRONMENT, with `witness`: what our sitecustomize wrote in that very process, None when it did not run."""
    with tempfile.TemporaryDirectory(prefix="ringmaster-witness-") as directory:
        seen = probe(python, environment={**environment, WITNESS_VARIABLE: directory}, flags=flags)
        try:
            with open(os.path.join(directory, f"{seen['pid']}.json"), encoding="ascii") as file:
                seen["witness"] = json.load(file)
        except FileNotFoundError:
            seen["witness"] = None
    return seen


def compare(seen: dict, expected: dict[str, str], path: str | None = None) -> tuple[list[str], list[str]]:
    """What a read_back() SEEN says against the values EXPECTED of our file (at PATH, if given).

    Returns (problems, kept): settings that are not in force because another file won, and those that were set before our file
    ran and so, by setdefault, stay. Each is a sentence.
    """
    witness, python = seen["witness"], seen["executable"]
    if witness is None:
        return [f"Ringmaster's sitecustomize did not run in {python}: {_why_not(seen, path)}."], []
    if path is not None and os.path.realpath(witness["file"]) != os.path.realpath(path):
        return [f"{python} runs {witness['file']}, another sitecustomize of Ringmaster, before {path}."], []
    problems, kept = [], []
    culprit = " or ".join(filter(None, [seen["chained"], seen["user_file"]])) or f"other code of {witness['file']}"
    for name, value in sorted(expected.items()):
        found = seen["nccl"].get(name)
        if found == value:
            continue
        if name in witness["kept"] and found == witness["kept"][name]:
            kept.append(f"{name} was set to {found!r} before sitecustomize ran and stays so (wanted: {value!r}).")
        elif witness["applied"].get(name) != value:
            problems.append(f"{witness['file']} set {name} to {witness['applied'].get(name)!r}, not to {value!r}.")
        else:
            problems.append(f"{name} is {found!r} in the end, not {value!r}: {culprit} changes it after Ringmaster's part.")
    return problems, kept


def _why_not(seen, path):
    if seen["no_site"]:
        return "it is started with -S"
    if seen["ignores_environment"]:
        return "it is started with -I or -E and does not look at PYTHONPATH"
    if seen["site_file"] is None:
        return "it finds no sitecustomize at all"
    if path is not None and os.path.realpath(seen["site_file"]) == os.path.realpath(path):
        return f"{seen['site_file']} is imported but does not run Ringmaster's part"
    return f"it imports {seen['site_file']} instead"


def verify(python: str, environment: dict[str, str], expected: dict[str, str], *, path: str | None = None,
           flags: Sequence[str] = ()) -> list[str]:
    """What keeps the values EXPECTED from being in force in the interpreter PYTHON, started with FLAGS in the server's ENVIRONMENT.

    An empty list: all are. A sentence names the file, or the earlier setting, that won. Raises RingmasterError when it does not start.
    """
    problems, kept = compare(read_back(python, environment, flags), expected, path)
    return problems + kept


def rehearse(python: str, content: bytes, expected: dict[str, str], path: str) -> dict:
    """read_back() with CONTENT, meant for PATH, from a temporary directory. Raises RingmasterError unless EXPECTED is in force there."""
    with tempfile.TemporaryDirectory(prefix="ringmaster-site-") as directory:
        copy = os.path.join(directory, "sitecustomize.py")
        with open(copy, "wb") as file:
            file.write(content)
        seen = read_back(python, {"PYTHONPATH": directory})
        problems, _kept = compare(seen, expected, copy)
    if problems:
        remedy = "Nothing was changed. Take that assignment out, or try the other nccl_scope."
        raise RingmasterError(" ".join(problems).replace(copy, path), remedy)
    return seen


def remove_stale_bytecode(path: str) -> list[str]:
    """Remove what was compiled from PATH: a .pyc of a file of the same size and second would win. Returns the files removed."""
    removed = []
    for source in _import_paths(path):
        directory, name = os.path.split(source)
        cache = os.path.join(directory, "__pycache__")
        stale = glob.glob(os.path.join(glob.escape(cache), f"{name[:-3]}.*.pyc"))
        for file in stale:
            os.unlink(file)
        if stale:
            with contextlib.suppress(OSError):
                os.rmdir(cache)  # only when it is empty now
        removed += stale
    return sorted(removed)


def _import_paths(path):
    """PATH and, for Debian's conffile, the link through which Python imports it and beside which its bytecode lies."""
    debian = re.fullmatch(r"/etc/(python3\.\d+)/sitecustomize\.py", path)
    return [path, f"/usr/lib/{debian.group(1)}/sitecustomize.py"] if debian else [path]


def users_of(found: dict, path: str) -> list[dict]:
    """The SGLang processes whose interpreter imports the sitecustomize PATH: [{pid, cmdline}]. FOUND is a probe of that interpreter.

    A path below the interpreter's prefix is read by that prefix alone (a venv); another by every venv of the same base Python.
    """
    program = os.path.realpath(found["executable"])
    prefix = os.path.realpath(found["prefix"]) + "/"
    private = found["prefix"] != found["base_prefix"] and (os.path.realpath(os.path.dirname(path)) + "/").startswith(prefix)
    users = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        words = procfs.command_line(pid)
        if not _is_sglang(words):
            continue
        with contextlib.suppress(OSError):  # gone, or not ours to look at
            if os.path.realpath(f"/proc/{pid}/exe") == program and (not private or _lives_in(pid, words, prefix)):
                users.append({"pid": pid, "cmdline": " ".join(words).strip()})
    return users


def _is_sglang(words):
    if words and words[0].startswith("sglang::"):  # the title that a worker gives itself
        return True
    return any(word in ("sglang", "sglang.launch_server") or word.endswith("/bin/sglang") for word in words[1:])


def _lives_in(pid, words, prefix):
    if os.path.realpath(os.path.dirname(words[0])).startswith(prefix):
        return True
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return prefix in file.read()
