# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One SGLang environment, built from a lock file: every file checked by its checksum, proven at the end, stamped last.

`build` is the entry. Where the packages come from is a source: {"index_url": URL}, {"wheels": DIRECTORY} or {"site": DIRECTORY}, a trimmed
site-packages for a host whose base interpreter has the rest ("below": names of what that is to have).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse

from . import environments, environments_uv, files, procfs
from .environments_lock import allows, differences, normal, parse
from .errors import RingmasterError

PYTHONS = ("python3.12", "python3.11", "python3.13", "python3.10", "python3")
TOOLS = ("auto", "uv", "pip")
_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
_PROOF = """
import importlib.metadata, importlib.util, json, sys, sysconfig
spec = importlib.util.find_spec("sglang")
site = sysconfig.get_path("purelib")
names = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions(path=[site])}
seen = sorted({d.metadata["Name"] for d in importlib.metadata.distributions()})
version = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps({"sglang": spec and spec.origin, "site": site, "installed": names, "seen": seen, "python": version}))
"""
_SITES = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))]))"
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


def base_python(asked, python_range):
    """(path, version) of the interpreter to build from: ASKED, or the first of PYTHONS that the lock's PYTHON_RANGE allows."""
    seen = []
    for name in [asked] if asked else PYTHONS:
        place = shutil.which(name)
        version = place and _version(place)
        if version and allows(python_range, version):
            return place, version
        if place:
            seen.append(f"{name} is {version or 'no Python that starts'}")
    found = "; ".join(dict.fromkeys(seen)) or (f"{asked} is not there" if asked else "found none")
    wanted = f"this SGLang needs Python {python_range}" if python_range else "this SGLang needs a Python"
    if asked:
        raise RingmasterError(f"sglang_base_python: {found}; {wanted}.", "Name another one, or none.")
    wanted = f"T{wanted[1:]}"
    raise RingmasterError(f"{wanted}; {found}.", "Install one, or name it in sglang_base_python.")


def _version(python):
    try:
        done = _quiet([python, "-I", "-S", "-c", _VERSION])
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _quiet(command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, cwd="/")


def check_disk(home, disk_mib):
    """Raise RingmasterError when HOME's file system has less room than the lock tells that it needs, less what a former try left."""
    free = files.free_bytes(home) / 2**20
    needed = disk_mib - environments.size_bytes(os.path.join(home, "cache")) / 2**20
    if free < needed:
        remedy = "Free some, or remove an environment that is not needed (sglang_keep_environments)."
        raise RingmasterError(f"{home} has {free:.0f} MiB free, and this environment needs about {needed:.0f} MiB.", remedy)


def plan(home, name, lock_text, asked_python, source=None):
    """What a build would start from: {lock, python, python_version}. Raises RingmasterError for all that can be known before."""
    site = (source or {}).get("site")
    environments.check_name(name)
    lock = parse(lock_text)
    python, version = base_python(asked_python, lock["python"])
    check_disk(home, environments.size_bytes(site) / 2**20 if site else lock["disk_mib"])
    return {"lock": lock, "python": python, "python_version": version}


def build(home, name, lock_text, *, source, uv_lock_text, asked_python=None, tool="auto", timeout_s=7200):
    """Make the environment NAME of HOME whole. Returns its stamp; `fault` of it is then None.

    Every error names the log. What is left of a build that failed is removed; only what was downloaded stays, for the next try.
    """
    planned = plan(home, name, lock_text, asked_python, source)
    place, log = environments.path(home, name), environments.log_path(home, name)
    with environments.locked(home, f"the build of {name} (log: {log})") as lock_descriptor:
        if not make_way(home, name, planned["lock"]["sha256"]):
            return environments.stamp(home, name)
        for folder in ("environments", "log", "cache"):
            files.make_directory(os.path.join(home, folder), 0o755)
        work = _Work(home, name, lock_descriptor, timeout_s)
        try:
            used = _fill(work, planned, lock_text, source, uv_lock_text, tool)
            seen = _prove(work, planned, source)
            stamp = {
                "name": name,
                "lock_sha256": planned["lock"]["sha256"],
                "records": environments.records(place),
                "versions": {package: seen["installed"].get(package) for package in ("sglang", "torch", "flashinfer-python")},
                "packages": len(seen["installed"]),
                "python": seen["python"],
                "base_python": planned["python"],
                "tool": used,
                "built": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "seconds": round(time.monotonic() - work.begun, 1),
            }
            os.sync()  # the stamp says that all else is on the disk
            files.write_json(os.path.join(place, environments.STAMP), stamp, mode=0o644)
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            raise files.explain(error.filename or place, "build", error) from error
        except RingmasterError:
            shutil.rmtree(place, ignore_errors=True)
            raise
        shutil.rmtree(os.path.join(home, "cache"), ignore_errors=True)
        return stamp


def check_way(home, name, lock_sha256):
    """Whether there is something to build. Raises RingmasterError where what is there under this NAME is not whole and must stay."""
    fault = environments.fault(home, name, lock_sha256)
    if fault in (None, "is not there"):
        return fault is not None
    if environments.users(home, name) or (name == environments.linked(home) and environments.starts(home, name)):
        remedy = "Switch to another one (sglang_version) and restart the server, or stop it and remove that directory; then run again."
        raise RingmasterError(f"{environments.path(home, name)} {fault}, and is in force or in use.", remedy)
    return True


def make_way(home, name, lock_sha256):
    """check_way(), and what is there and not whole is gone."""
    to_do = check_way(home, name, lock_sha256)
    if to_do:
        environments.remove(home, name)
    return to_do


class _Work:
    """A build on its way: where it logs, until when, and what it starts."""

    def __init__(self, home, name, descriptor, timeout_s):
        self.home, self.name, self.descriptor = home, name, descriptor
        self.place, self.python = environments.path(home, name), environments.python(home, name)
        self.log = environments.log_path(home, name)
        self.begun = time.monotonic()
        self.deadline = self.begun + timeout_s
        self.tail = []  # the last lines of what ran last
        with open(self.log, "w", encoding="utf-8"):
            pass

    def run(self, what, command, environment=None, secrets=()):
        """Run COMMAND, its output in the log. It ends with us, and keeps the lock as long as it lives. SECRETS never reach the log."""
        clean = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        clean.update({name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")})
        self.tail = []
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {what}: {' '.join(command)}\n")
            log.flush()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd="/",
                env={**clean, "LC_ALL": "C.UTF-8", **(environment or {})}, pass_fds=[self.descriptor], preexec_fn=procfs.die_with_parent,
            )  # fmt: skip
            timer = threading.Timer(max(0.0, self.deadline - time.monotonic()), process.kill)
            timer.start()
            try:
                for line in process.stdout:
                    self._note(log, line, secrets)
                process.wait()
            finally:
                timer.cancel()
                process.kill()
                process.wait()
        if process.returncode and time.monotonic() >= self.deadline:
            remedy = f"See {self.log}; give it longer (sglang_build_timeout_s)."
            raise RingmasterError(f"{what} of {self.name} took too long and was ended.", remedy)
        if process.returncode:
            raise self.failure(what)

    def _note(self, log, line, secrets):
        for secret in secrets:
            line = line.replace(secret, "***")
        self.tail = [*self.tail[-11:], line.rstrip()]
        with contextlib.suppress(OSError):  # a full disk: what fails for it says so itself
            log.write(line)
            log.flush()

    def failure(self, what):
        text = " ".join(" ".join(self.tail).split())
        remedy = f"The log is {self.log}."
        if re.search(r"os error 28|No space left", text):
            full = f"{what} of {self.name}: {os.strerror(errno.ENOSPC)} below {self.home}."
            return RingmasterError(full, f"Free some and run again. {remedy}")
        return RingmasterError(f"{what} of {self.name} failed: {text[-900:]}", remedy)


def _fill(work, planned, lock_text, source, uv_lock_text, tool):
    """The environment's Python and packages. Returns the tool that installed them."""
    python = planned["python"]
    if "site" in source:
        work.run("Making", [python, "-I", "-m", "venv", "--without-pip", work.place])
        _copy_site(work, python, source["site"])
        return "copy"
    uv = None if tool == "pip" else environments_uv.find(work.home, source, uv_lock_text, required=tool == "uv")
    url, secrets = source.get("index_url"), environments_uv.secrets_of(source.get("index_url"))
    lock_path = os.path.join(work.place, "lock.txt")
    as_it_stands = planned["lock"]["no_deps"]
    wanted = ["--require-hashes", *(["--no-deps"] if as_it_stands else [])]
    if uv:
        work.run("Making", [python, "-I", "-m", "venv", "--without-pip", work.place])
        files.write_atomic(lock_path, lock_text.encode(), mode=0o644)
        where = ["--offline", "--no-index", "--find-links", source["wheels"]] if "wheels" in source else []
        cache = os.path.join(work.home, "cache", "uv")  # on the same file system: what is unpacked there is linked, not copied
        common = {"UV_CACHE_DIR": cache, "UV_NO_CONFIG": "1", "UV_HTTP_TIMEOUT": "120", "UV_SYSTEM_CERTS": "1"}
        work.run(
            "Installation",
            [uv, "pip", "install", f"--python={work.python}", *wanted, "--no-build", "--compile-bytecode", *where,
             f"--requirements={lock_path}"], {**common, **({"UV_DEFAULT_INDEX": url} if url else {})}, secrets,
        )  # fmt: skip
        if not as_it_stands:
            work.run("Check", [uv, "pip", "check", f"--python={work.python}"], common)
        return os.path.basename(uv)
    try:
        work.run("Making", [python, "-I", "-m", "venv", work.place])
    except RingmasterError as error:
        raise RingmasterError(error.what, f"pip needs ensurepip (Debian, Ubuntu: python3-venv), uv does not. {error.remedy}") from error
    files.write_atomic(lock_path, lock_text.encode(), mode=0o644)
    where = ["--no-index", "--find-links", source["wheels"]] if "wheels" in source else []
    pip = [work.python, "-I", "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
    clean = {"PIP_CONFIG_FILE": os.devnull, **({"PIP_INDEX_URL": url} if url else {})}
    if url and url.startswith("http:"):  # as uv takes it: every file is checked by its checksum
        clean["PIP_TRUSTED_HOST"] = urllib.parse.urlsplit(url).hostname
    work.run("Installation", [*pip, "install", *wanted, "--only-binary=:all:", *where, "-r", lock_path], clean, secrets)
    if not as_it_stands:
        work.run("Check", [*pip, "check"], clean)
    return "pip"


def _copy_site(work, python, site):
    """A trimmed site-packages SITE into the environment; what it lacks comes from the base interpreter's own."""
    target = json.loads(_quiet([work.python, "-I", "-c", _SITES]).stdout)[0]
    shutil.copytree(site, target, dirs_exist_ok=True, symlinks=True)
    below = json.loads(_quiet([python, "-I", "-c", _SITES]).stdout)
    files.write_atomic(os.path.join(target, "ringmaster_base.pth"), "".join(f"{one}\n" for one in below).encode(), mode=0o644)
    _link_programs(os.path.dirname(python), os.path.dirname(work.python))


def _link_programs(base, own):
    """What packages of the base interpreter have put beside it (ninja, which compiles kernels at start) is found beside ours, too."""
    for name in os.listdir(base) if base not in SYSTEM_PATH else ():
        program = os.path.join(base, name)
        link = os.path.join(own, name)
        if not name.startswith(("python", "pip", "activate")) and os.access(program, os.X_OK) and not os.path.lexists(link):
            os.symlink(program, link)


def _prove(work, planned, source):
    """What the environment's own Python says of itself: it finds SGLang inside, and the versions are the lock's."""
    lock = planned["lock"]
    done = _quiet([work.python, "-I", "-c", _PROOF])
    if done.returncode:
        raise RingmasterError(f"{work.python} fails: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", f"The log is {work.log}.")
    seen = json.loads(done.stdout)
    ignored = {"pip", "setuptools"} - set(lock["versions"])
    installed = {name: version for name, version in seen["installed"].items() if name not in ignored}
    wrong = differences(lock, installed) if "site" not in source else []
    if not seen["sglang"] or not seen["sglang"].startswith(seen["site"] + "/"):
        wrong.append(f"`import sglang` would take {seen['sglang'] or 'nothing'}")
    if absent := sorted(set(map(normal, source.get("below", ()))) - set(map(normal, seen["seen"]))):
        named = f"{', '.join(absent[:8])}{' ...' if len(absent) > 8 else ''}"
        what = f"This slim bundle is for a host that has {named}; {planned['python']} has not."
        remedy = "Make one by this host's `pip list` (bundle_host_packages), or name its Python in sglang_base_python."
        raise RingmasterError(what, remedy)
    if wrong:
        raise RingmasterError(f"{work.name} is not what its lock says: {'; '.join(wrong[:5])}.", f"The log is {work.log}.")
    return seen
