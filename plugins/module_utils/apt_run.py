# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run apt's and dpkg's programs, once nobody else does."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import time

from .errors import RingmasterError

TIMEOUT_S = 120.0
INSTALL_TIMEOUT_S = 3600.0  # gigabytes over a slow network, and a kernel module that is built
FLOCK = "hhqqi4x"  # of Linux on 64 bits
# What an installation may do. It is tried, measured and carried out with the same words.
LEAVE = ("--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages")
# What a repository that apt cannot use needs, by the first of apt's words that is found. The variables are those of role cuda.
CURES = (
    (r"Conflicting values set for option Signed-By", "Two files in /etc/apt name one repository, with a key each: remove one of them."),
    (
        r"NO_PUBKEY|Missing key",
        "Another key signs it than this host trusts for it (cuda_repository_key; a text that ends in .asc, or binary in .gpg).",
    ),
    (r"(EXP|REV)KEYSIG|KEYEXPIRED", "That key is no longer good: give the one that signs it now (cuda_repository_key)."),
    (
        r"SHA1 is not considered secure",
        "This apt refuses keys and signatures of that kind: give repository and key of a newer distribution (cuda_repository_*).",
    ),
    (r"[Cc]ertificate", "Look at the clock of this host (timedatectl) and at its certificates (package ca-certificates)."),
    (r"is not valid yet", "Set the clock of this host right (timedatectl)."),
    (r"is expired|no longer valid", "Look at the clock of this host (timedatectl). Where it is right, nobody renews that repository."),
    (r"is not signed", "Give the key that signs it (cuda_repository_key)."),
    (r"No space left|free space", "Make room, and run this again."),
    (r"resolv|[Cc]onnect|[Tt]imed out|unreachable", "Look at the network and at the address of that repository (cuda_repository_url)."),
)
OF_EACH = ("dpkg: error", "dpkg: unrecoverable", "E: Failed to fetch")  # hundreds, where a disk is full or a mirror away
ADDRESS = "Look at the address of that repository (cuda_repository_url) and what is there."
CAME_BETWEEN = re.compile(r"Could not get lock|Unable to (lock|acquire)|is locked by another process|Problem renaming the file .*cache")
LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/cache/apt/archives/lock", "/var/lib/apt/lists/lock")


def attempt(*command, timeout_s=TIMEOUT_S):
    """(exit status, standard output and error) of COMMAND, in English and never asking anything."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise RingmasterError(f"{command[0]} is not here.", "This needs a Debian or Ubuntu host.") from None
    except subprocess.TimeoutExpired:
        raise RingmasterError(f"{command[0]} does not end within {timeout_s:g} s.", "Look whether another package manager runs.") from None
    return done.returncode, f"{done.stdout}\n{done.stderr}"


def run(*command):
    """The output of COMMAND, which must not fail."""
    code, text = attempt(*command)
    if code:
        remedy = cure(text, "Mend the host's package manager first (apt-get check).")
        raise RingmasterError(f"{command[0]} fails ({code}): {refusal(text)}.", remedy)
    return text


def stanzas(text, *names):
    """[({field: value} of NAMES, stanza)] of what apt or dpkg prints of packages, or of an index; values of one line only."""
    field = re.compile(rf"(?m)^({'|'.join(names)}): *(.*)$")
    return [(dict(field.findall(stanza)), stanza) for stanza in text.split("\n\n")]


def refusal(text):
    """apt's own words for why it cannot, as one line, without greeting and last dot; of what it says of each package the first two."""
    lines = [line.strip() for line in text.splitlines()]
    kept, on, seen = [], False, dict.fromkeys(OF_EACH, 0)
    for line, following in zip(lines, [*lines[1:], ""]):
        kind = next((one for one in OF_EACH if line.startswith(one)), None)
        if kind:
            seen[kind] += 1
            cause = f" {following}" if kind.startswith("dpkg") and line.endswith(":") else ""
            kept += [line.removeprefix("E: ") + cause] if seen[kind] <= 2 else []
            continue
        on = on or line.startswith("The following packages have unmet dependencies")
        said = line.startswith(("E:", "W: GPG error", "W: OpenPGP", "Depends:", "Conflicts:", "Breaks:"))
        if said or (on and line and not line.startswith(("W:", "N:"))):
            kept.append(line[2:].strip() if line.startswith(("E:", "W:")) else line)
    kept = [line for line in kept if not line.startswith("The following packages have unmet")]
    return ("; ".join(dict.fromkeys(kept)) or " ".join(lines[-3:])).strip().rstrip(".") or "apt-get gave no reason"


def cure(text, otherwise=ADDRESS):
    """What to do about a repository that apt complains of with TEXT."""
    return next((advice for words, advice in CURES if re.search(words, text)), otherwise)


def wait_until_free(timeout_s, locks=LOCKS):
    """Wait until no package manager runs; RingmasterError naming the one that does not end.

    What a package manager that runs has done so far looks like something that was cut off, so nothing is judged before.
    """
    deadline = time.monotonic() + timeout_s
    while held := [(path, pid) for path in locks if (pid := holder(path)) is not None]:
        if time.monotonic() >= deadline:
            path, pid = held[0]
            raise RingmasterError(
                f"Another package manager has {path} since more than {timeout_s:g} s: {_who(pid)}.",
                "Wait until it has ended (systemctl status apt-daily-upgrade unattended-upgrades), and run this again.",
            )
        time.sleep(min(1.0, max(0.05, deadline - time.monotonic())))


def alone(timeout_s, *command):
    """attempt() once no package manager runs, and again when one has come in between."""
    deadline = time.monotonic() + timeout_s
    while True:
        wait_until_free(max(0.0, deadline - time.monotonic()))
        code, text = attempt(*command, timeout_s=INSTALL_TIMEOUT_S)
        if not code or not CAME_BETWEEN.search(text) or time.monotonic() >= deadline:
            return code, text


def holder(path):
    """The pid that has a lock on PATH; None when nobody has one, 0 when it is out of sight (in another container)."""
    try:
        with open(path, "rb") as file:
            asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _whence, _start, _length, pid = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def _who(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return f"pid {pid} ({words[:120]})" if words else f"pid {pid}" if pid else "a process of another container"
