# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between a server's command line and the `server` part of a configuration."""

from __future__ import annotations

import os

from .errors import RingmasterError

MODULE = "sglang.launch_server"
# Spellings that SGLang's parser accepts for one and the same option.
ALIASES = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "model": "model-path",
    "dist-init-address": "dist-init-addr",
}


def flag_name(name):
    """The one spelling of a flag that Ringmaster uses: no dashes in front, hyphens inside, aliases resolved."""
    plain = str(name).lstrip("-").replace("_", "-")
    return ALIASES.get(plain, plain)


def flag_value(value):
    """A flag's value as a configuration holds it: True, text, a list of texts, or None for "not there"."""
    if value is None or value is False:
        return None
    if value is True:
        return True
    return [str(item) for item in value] if isinstance(value, list) else str(value)


def parse_flags(arguments):
    """Flags from an argument list: {name: True | str | [str, ...]}. Raises RingmasterError at a stray word."""
    flags, name = {}, None
    for word in arguments:
        if word.startswith("--"):
            name, has_value, value = word.partition("=")
            name = flag_name(name)
            flags[name] = value if has_value else True
        elif name is None:
            raise RingmasterError(f"The server's command has the word {word!r} where a flag was expected.", "Set sglang_flags instead.")
        elif flags[name] is True:
            flags[name] = word
        else:
            flags[name] = [*(flags[name] if isinstance(flags[name], list) else [flags[name]]), word]
    return flags


def parse(command):
    """The `server` part of a configuration from a server's argument list (of a unit or a live process).

    Returns {python, module, flags, listen: {host, port}}. Raises RingmasterError when it is no plain SGLang command.
    """
    words = list(command)
    remedy = "Give the command in the inventory: sglang_python, sglang_model_path, sglang_flags."
    if MODULE in words:
        at = words.index(MODULE)
        interpreter = words[0]
    else:
        at = next((i + 1 for i, word in enumerate(words[:-1]) if os.path.basename(word) == "sglang" and words[i + 1] == "serve"), None)
        if at is None:
            raise RingmasterError(f"The command {' '.join(words[:4])!r} does not start SGLang by `python -m {MODULE}`.", remedy)
        interpreter = words[0] if at > 1 else _shebang(words[0])
    if not os.path.basename(interpreter).startswith("python"):
        raise RingmasterError(f"The server's command starts with {interpreter!r}, which is no Python.", remedy)
    flags = parse_flags(words[at + 1 :])
    host, port = flags.pop("host", "127.0.0.1"), flags.pop("port", "30000")
    if not str(port).isdecimal():
        raise RingmasterError(f"The server's command has --port {port!r}, which is no port number.", remedy)
    listen = {"host": host, "port": int(port)}
    return {"python": interpreter, "module": MODULE, "flags": flags, "listen": listen}


def _shebang(script):
    try:
        with open(script, "rb") as file:
            first = file.readline(256)
    except OSError:
        return script
    return first[2:].split()[0].decode(errors="replace") if first.startswith(b"#!") else script


def arguments(server, *, host, port):
    """The argument list that starts SERVER (a configuration's part) on HOST:PORT."""
    words = [server["python"], "-m", server.get("module", MODULE)]
    for name, value in server["flags"].items():
        if value is False or value is None:
            continue
        values = [] if value is True else [str(item) for item in (value if isinstance(value, list) else [value])]
        if len(values) == 1 and values[0].startswith("-"):  # a word of its own would be taken for another flag
            words.append(f"--{name}={values[0]}")
        else:
            words += [f"--{name}", *values]
    return [*words, "--host", host, "--port", str(port)]


def flag_int(server, name, default):
    """An integer flag of SERVER."""
    try:
        return int(server["flags"].get(name, default))
    except (TypeError, ValueError):
        return default


def rank_count(server):
    """How many schedulers SERVER runs on one node: one for each GPU of a replica."""
    return flag_int(server, "tp-size", 1) * flag_int(server, "pp-size", 1)
