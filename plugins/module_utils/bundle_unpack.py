# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a bundle out of its parts, and a slim bundle's tree out of its archive."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile

from . import bundle_files, files
from .errors import RingmasterError


class Joined(io.RawIOBase):
    """PATHS one after the other, as one stream."""

    def __init__(self, paths):
        self._paths = list(paths)
        self._file = None

    def readable(self):
        return True

    def readinto(self, buffer):
        while True:
            if self._file is None:
                if not self._paths:
                    return 0
                self._file = open(self._paths.pop(0), "rb")  # noqa: SIM115
            count = self._file.readinto(buffer)
            if count:
                return count
            self._file.close()
            self._file = None

    def close(self):
        if self._file is not None:
            self._file.close()
        super().close()


def unpack(parts, rows, folder):
    """Write the files of ROWS into FOLDER from the tar that PARTS (paths) are pieces of; one that is there and whole is left.

    Each file appears under its name when it is whole and has its checksum.
    """
    wanted = {row["path"]: row for row in rows}
    try:
        with io.BufferedReader(Joined(parts), bundle_files.BLOCK) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                row = wanted.pop(member.name, None)
                if row is None or not member.isreg():
                    raise RingmasterError(f"The parts hold {member.name}, which the manifest does not name.", "Make the bundle again.")
                if bundle_files.fault(folder, row):
                    _place(archive.extractfile(member), row, os.path.join(folder, member.name))
    except (tarfile.TarError, EOFError) as error:
        raise RingmasterError(f"The parts are no archive: {error}.", "Make the bundle again.") from error
    if wanted:
        raise RingmasterError(f"The parts lack {sorted(wanted)[0]}, which the manifest names.", "Make the bundle again.")


def _place(source, row, path):
    files.make_directory(os.path.dirname(path))
    digest, building = hashlib.sha256(), f"{path}.building"
    try:
        with open(building, "wb") as file:
            while block := source.read(bundle_files.BLOCK):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != row["sha256"]:
            raise RingmasterError(f"{row['path']} has another checksum than the manifest says.", "Make the bundle again.")
        os.chmod(building, 0o644)
        os.rename(building, path)
    except OSError as error:
        raise files.explain(path, "write", error) from error
    finally:
        if os.path.exists(building):
            os.unlink(building)


def unpack_tree(archive, folder):
    """Make FOLDER the tree in ARCHIVE (.tar.xz); what was there before goes when the new one is whole."""
    building, former = f"{folder}.building", f"{folder}.former"
    for path in (building, former):
        shutil.rmtree(path, ignore_errors=True)
    try:
        with tarfile.open(archive, "r:xz") as tree:
            for member in tree:
                pieces = member.name.split("/")
                if not (member.isreg() or member.isdir()) or member.name.startswith("/") or ".." in pieces:
                    raise RingmasterError(f"{archive} holds {member.name}, which is no plain file below it.", "Make the bundle again.")
                member.uid = member.gid = 0
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                tree.extract(member, building, set_attrs=True)
    except (tarfile.TarError, EOFError) as error:
        raise RingmasterError(f"{archive} is no archive: {error}.", "Make the bundle again.") from error
    except OSError as error:
        raise files.explain(building, "write", error) from error
    if os.path.isdir(folder):
        os.rename(folder, former)
    os.rename(building, folder)
    shutil.rmtree(former, ignore_errors=True)


def tree_seen(folder):
    """[files, bytes] below FOLDER."""
    count = total = 0
    for place, _folders, names in os.walk(folder):
        count += len(names)
        total += sum(os.lstat(os.path.join(place, name)).st_size for name in names)
    return [count, total]
