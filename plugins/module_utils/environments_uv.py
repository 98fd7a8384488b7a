# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""uv on a host: the program out of its wheel, checked by its checksum. Neither pip nor python3-venv is needed for that."""

from __future__ import annotations

import base64
import html.parser
import io
import os
import platform
import subprocess
import urllib.error
import urllib.parse
import zipfile

from ansible.module_utils.urls import open_url

from . import files
from .environments_lock import check_uv, choose_uv
from .errors import RingmasterError

TIMEOUT_S = 120


def find(home, source, uv_lock_text, required=False):
    """Path of the uv that the lock names, put into HOME/bin where it is not yet; None where SOURCE has none for this machine.

    Raises RingmasterError when it is REQUIRED and not to be had, or altered.
    """
    _name, version = choose_uv([], uv_lock_text, "")
    place = os.path.join(home, "bin", f"uv-{version}")
    if _runs(place):
        return place
    machine = platform.machine()
    urls = _files(source)
    name, version = choose_uv(urls, uv_lock_text, machine)
    if name is None:
        if required:
            what = f"{_shown(source)} has no uv {version} for {machine}."
            raise RingmasterError(what, "Put its wheel there, or use sglang_build_tool=pip.")
        return None
    data = _read(urls[name])
    check_uv(data, uv_lock_text, name)
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        member = next((entry for entry in wheel.namelist() if entry.endswith(".data/scripts/uv")), None)
        if member is None:
            raise RingmasterError(f"{name} has no program in it.", "Use another wheel, or sglang_build_tool=pip.")
        files.make_directory(os.path.dirname(place))
        files.write_atomic(place, wheel.read(member), mode=0o755)
    if not _runs(place):
        raise RingmasterError(f"{place} does not run on this host.", "Use sglang_build_tool=pip.")
    return place


def _runs(program):
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


class _Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        target = dict(attrs).get("href") if tag == "a" else None
        if target:
            self.found.append(target)


def _files(source):
    """{file name: path or URL} of what SOURCE has of uv."""
    if "wheels" in source:
        folder = source["wheels"]
        if not os.path.isdir(folder):
            raise RingmasterError(f"{folder} is no directory on this host.", "Bring the bundle there, or set sglang_source to online.")
        return {name: os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("uv-")}
    page = source["index_url"].rstrip("/") + "/uv/"
    try:
        text = _read(page).decode(errors="replace")
    except RingmasterError as error:
        if isinstance(error.__cause__, urllib.error.HTTPError) and error.__cause__.code == 404:
            return {}
        raise
    links = _Links()
    links.feed(text)
    absolute = [urllib.parse.urljoin(page, link) for link in links.found]
    return {urllib.parse.unquote(urllib.parse.urlsplit(link).path.rpartition("/")[2]): link.partition("#")[0] for link in absolute}


def _read(place):
    """Bytes of a file or URL; a name and password in the URL go into a header, not over the wire as they stand."""
    if "://" not in place:
        return files.content(place) or b""
    address, secret = _split(place)
    headers = {"Accept": "text/html, */*"}
    if secret:
        headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
    try:
        with open_url(address, headers=headers, unredirected_headers=["Authorization"], timeout=TIMEOUT_S) as answer:
            return answer.read()
    except (OSError, ValueError) as error:
        raise RingmasterError(f"{address} cannot be read: {error}.", "Check sglang_index_url, and that this host reaches it.") from error


def _split(url):
    """(URL without name and password, "name:password" or "")."""
    parts = urllib.parse.urlsplit(url)
    if not parts.username and not parts.password:
        return url, ""
    host = parts.netloc.rpartition("@")[2]
    secret = f"{urllib.parse.unquote(parts.username or '')}:{urllib.parse.unquote(parts.password or '')}"
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), secret


def secrets_of(url):
    """Texts in URL that nobody may see: the password, or where there is none the name, which then is a token; as written and as meant."""
    if not url:
        return []
    parts = urllib.parse.urlsplit(url)
    secret = parts.password or parts.username
    return sorted({secret, urllib.parse.unquote(secret)}) if secret else []


def _shown(source):
    return source.get("wheels") or _split(source["index_url"])[0]
