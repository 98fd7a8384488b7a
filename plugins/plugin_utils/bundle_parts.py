# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle's files as one tar cut into pieces. The same files give the same bytes."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_files


class Pieces(io.RawIOBase):
    """Writes a stream into FOLDER/parts/bundle.tar.000 and so on, each of SIZE bytes but the last; `rows` is the manifest's list."""

    def __init__(self, folder: Path, size: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._folder, self._size = folder, size
        self._file: io.BufferedWriter | None = None
        self._digest = hashlib.sha256()
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        while rest:
            if self._file is None:
                self._file = (self._folder / f"{bundle_files.PARTS}{len(self.rows):03}").open("wb")
            piece, rest = rest[: self._size - self._written], rest[self._size - self._written :]
            self._file.write(piece)
            self._digest.update(piece)
            self._written += len(piece)
            if self._written == self._size:
                self._end_piece()
        return len(data)

    def _end_piece(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = f"{bundle_files.PARTS}{len(self.rows):03}"
        self.rows.append({"path": path, "bytes": self._written, "sha256": self._digest.hexdigest()})
        self._file, self._digest, self._written = None, hashlib.sha256(), 0

    def close(self) -> None:
        if not self.closed:
            self._end_piece()
        super().close()


def split(folder: Path, rows: Iterable[dict[str, Any]], size: int, away: bool, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Pack the files of ROWS in FOLDER into parts of SIZE bytes; returns their rows. AWAY: each file goes as soon as it is in."""
    shutil.rmtree(folder / "parts", ignore_errors=True)
    (folder / "parts").mkdir()
    pieces = Pieces(folder, size)
    with pieces, tarfile.open(fileobj=pieces, mode="w|", format=tarfile.PAX_FORMAT, bufsize=bundle_files.BLOCK) as archive:
        for row in sorted(rows, key=lambda row: row["path"]):
            member = tarfile.TarInfo(row["path"])
            member.size, member.mode, member.mtime = row["bytes"], 0o644, 0
            with (folder / row["path"]).open("rb") as file:
                archive.addfile(member, file)
            if away:
                (folder / row["path"]).unlink()
    say(f"parts: {len(pieces.rows)} of {bundle_files.size(size)}")
    return pieces.rows
