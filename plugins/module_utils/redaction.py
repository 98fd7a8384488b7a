# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret in any output: the values of options and variables whose name says that they are one."""

from __future__ import annotations

import json
import re

_HARMLESS = re.compile(r"tokeni[sz]|tokens|token[-_]?map|keyfile$", re.IGNORECASE)
_SECRET = re.compile(r"key|token|secret|passw|passphrase|credential|^(admin[-_])?api([-_]ke?)?$", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def redact(value):
    """A copy of VALUE without secrets, at any depth: "***" for what is named key, token, secret or password, and for the login in a URL.

    Names that only sound so stay as they are (`tokenizer-path`, `max-total-tokens`, `speculative-token-map`, `ssl-keyfile`).
    """

    def clean(value):
        if isinstance(value, dict):
            return {name: "***" if _SECRET.search(_HARMLESS.sub("", str(name))) else clean(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(item) for item in value]
        return _URL_LOGIN.sub("***", value) if isinstance(value, str) else value

    return clean(value)


def secrets(value):
    """The texts that `configuration` hides of VALUE, a configuration: for `hide`. None shorter than 4 characters: they are everywhere."""
    parts = (value["server"]["flags"], value["environment"])
    hidden = [part[name] for part in parts for name, shown in redact(part).items() if shown == "***"]
    texts = [text for text in hidden if isinstance(text, str) and len(text) > 3]
    quoted = [shown[1:-1] for text in texts for shown in (repr(text), json.dumps(text))]  # as a log shows them
    return list(dict.fromkeys(texts + quoted))


def hide(value, texts):
    """A copy of VALUE, at any depth, with "***" for each of TEXTS: what a server printed may hold its own key."""
    if isinstance(value, dict):
        return {name: hide(item, texts) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide(item, texts) for item in value]
    for text in texts if isinstance(value, str) else ():
        value = value.replace(text, "***")
    return value


def configuration(value):
    """A configuration fit for results, ledgers and screens."""
    return {
        **value,
        "server": {**value["server"], "flags": redact(value["server"]["flags"])},
        "environment": redact(value["environment"]),
    }


def reveal(value, original):
    """VALUE, a configuration that went through `configuration`, with what was hidden taken from ORIGINAL."""

    def fill(hidden, known):
        shown = redact(known)
        return {name: known[name] if name in known and shown[name] == item else item for name, item in hidden.items()}

    return {
        **value,
        "server": {**value["server"], "flags": fill(value["server"]["flags"], original["server"]["flags"])},
        "environment": fill(value["environment"], original["environment"]),
    }
