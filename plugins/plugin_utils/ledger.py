# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger: every trial and run that this controller ever saw, append-only, in one SQLite file.

A connection lives for one operation, so that an object may cross a fork. The journal is SQLite's own (no WAL: a few rows a
run need no concurrency, and its shared memory does not work on every filesystem).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator

from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.files import write_atomic
from ansible_collections.ringmaster.gpu.plugins.module_utils.redaction import redact

APPLICATION_ID = 0x524D4C47  # "RMLG", in the file's header: tells a ledger from any other SQLite file
BUSY_TIMEOUT_S = 30
KINDS = {"trial": "trials", "run": "runs"}


def _append_only(table: str) -> tuple[str, ...]:
    # The insert trigger is for REPLACE, which deletes without asking the delete trigger.
    return tuple(
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {condition} "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        for verb, condition in (
            ("UPDATE", ""),
            ("DELETE", ""),
            ("INSERT", f"WHEN EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id)"),
        )
    )


# Item N takes a ledger from schema N to N + 1; a new file is at 0. Never change an item that was released.
UPGRADES: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE trials (id TEXT PRIMARY KEY NOT NULL, host TEXT NOT NULL, started TEXT NOT NULL, run TEXT, arm TEXT,"
        " fingerprint TEXT, content TEXT NOT NULL)",
        "CREATE INDEX trials_by_host ON trials (host, started)",
        "CREATE INDEX trials_by_run ON trials (run)",
        "CREATE TABLE runs (id TEXT PRIMARY KEY NOT NULL, host TEXT NOT NULL, started TEXT NOT NULL, factor TEXT, content TEXT NOT NULL)",
        "CREATE INDEX runs_by_host ON runs (host, factor, started)",
        *_append_only("trials"),
        *_append_only("runs"),
    ),
)

_WRITABLE = "Make the file and its directory writable for you, or set ringmaster_ledger to another path."
_ADVICE = {  # by SQLite's primary result code, https://www.sqlite.org/rescode.html
    "SQLITE_FULL": ("cannot grow: the disk is full", "Free space there, then repeat; nothing that was recorded is lost."),
    "SQLITE_IOERR": ("cannot be read or written", "Check that filesystem (space, quota, health), then repeat."),
    "SQLITE_BUSY": (f"has been in use by another process for {BUSY_TIMEOUT_S} s", "See who holds it (`fuser -v FILE`), then repeat."),
    "SQLITE_NOTADB": ("is not a ledger", "Set ringmaster_ledger to another path, or move that file away."),
    "SQLITE_CORRUPT": ("is damaged", "Move it away; a new ledger can be merged from an export."),
    "SQLITE_READONLY": ("cannot be written", _WRITABLE),
    "SQLITE_CANTOPEN": ("cannot be opened", _WRITABLE),
}


class Ledger:
    """`path` is created (mode 0600, with its directories) or brought to the present schema when the object is made.

    Records are JSON objects with at least `id`, `host`, `started` (ISO 8601, UTC); a trial may have `run`, `arm`, `fingerprint`,
    a run `factor`. Ids are unique in the ledger, over all hosts. Everything is stored redacted and given back as it was stored.
    Every failure is a RingmasterError that names the path.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            # Empty and private first: SQLite would create it readable for everybody. An empty file is a ledger at schema 0.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise self._error(f"cannot be opened ({error.strerror})", _WRITABLE) from error
        with self._connection() as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] != len(UPGRADES) or not self._is_ours(connection):
                self._upgrade(connection)

    def add_trial(self, trial: dict) -> bool:
        """Record a trial result; False when it was known already. Raises when its id is known with other content."""
        return self._add("trial", trial)

    def add_run(self, run: dict) -> bool:
        """Record a run; as `add_trial`."""
        return self._add("run", run)

    def trials(self, host: str | None = None, run: str | None = None) -> list[dict]:
        """Trials, oldest first."""
        return self._select("trials", host=host, run=run)

    def runs(self, host: str | None = None) -> list[dict]:
        """Runs, oldest first."""
        return self._select("runs", host=host)

    def last_run(self, host: str, factor: str) -> dict | None:
        """The latest run of this factor on this host."""
        return next(iter(self._select("runs", host=host, factor=factor)[-1:]), None)

    def baselines(self, host: str, fingerprint: object, workload: str) -> list[dict]:
        """Earlier baseline starts on the same hardware and software, oldest first; discarded and faulty ones left out.

        Each `{"trial": id, "run": id, "started": str, "configuration": dict, "decode_tok_s": float}`. They plan and warn of
        drift; they are never compared with a candidate.
        """
        return [
            {name: trial.get(name) for name in ("run", "started", "configuration")}
            | {"trial": trial["id"], "decode_tok_s": row["decode_tok_s"]}
            for trial in self._select("trials", host=host, arm="baseline", fingerprint=_canonical(redact(fingerprint)))
            if not trial.get("discard")
            for row in trial.get("workloads") or []
            if row["name"] == workload and row.get("decode_tok_s") and not row.get("errors") and not row.get("contaminated")
        ]

    def export_jsonl(self, path: str) -> int:
        """Write all records to `path` (mode 0600, atomically), a line `{"kind": "trial"|"run", "record": {...}}` each; their number."""
        with self._connection() as connection:
            connection.execute("BEGIN")  # one snapshot of both tables
            lines = [
                f'{{"kind":"{kind}","record":{content}}}\n'
                for kind, table in KINDS.items()
                for (content,) in connection.execute(f"SELECT content FROM {table} ORDER BY started, id")
            ]
        write_atomic(path, "".join(lines).encode(), mode=0o600)
        return len(lines)

    def merge_jsonl(self, path: str) -> tuple[int, int]:
        """Add the records of an export: (added, known). All of it or, on a faulty or contradicting line, nothing."""
        entries = _read_export(path)
        added = 0
        with self._writing() as connection:
            for number, (kind, record) in entries.items():
                try:
                    added += self._insert(connection, kind, record)
                except RingmasterError as error:
                    raise RingmasterError(f"{path}, line {number}: {error.what}", f"{error.remedy} Nothing was merged.") from error
        return added, len(entries) - added

    def _add(self, kind: str, record: dict) -> bool:
        with self._writing() as connection:
            return self._insert(connection, kind, record)

    def _insert(self, connection: sqlite3.Connection, kind: str, record: dict) -> bool:
        table = KINDS[kind]
        for name in ("id", "host", "started"):
            if not isinstance(record.get(name), str) or not record[name]:
                raise self._error(f"was given a {kind} whose {name} is {record.get(name)!r}", "A text is needed there.")
        record = redact(record)
        try:
            content = _canonical(record)
        except (TypeError, ValueError) as error:
            raise self._error(f"was given a {kind} that JSON cannot hold ({error})", "Only finite numbers and plain types fit.") from error
        stored = connection.execute(f"SELECT content FROM {table} WHERE id = ?", (record["id"],)).fetchone()
        if stored and stored[0] != content:
            raise self._error(
                f"already has another {kind} with id {record['id']}", "Records are never changed; a new result needs an id of its own."
            )
        if stored:
            return False
        columns = {name: record[name] for name in ("id", "host", "started")} | {"content": content}
        if kind == "trial":
            columns |= {"run": record.get("run"), "arm": record.get("arm"), "fingerprint": _canonical(record.get("fingerprint"))}
        else:
            columns["factor"] = record.get("factor")
        connection.execute(f"INSERT INTO {table} ({','.join(columns)}) VALUES ({','.join('?' * len(columns))})", tuple(columns.values()))
        return True

    def _select(self, table: str, **wanted: str | None) -> list[dict]:
        wanted = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(["1", *(f"{name} = ?" for name in wanted)])
        with self._connection() as connection:
            rows = connection.execute(f"SELECT content FROM {table} WHERE {where} ORDER BY started, id", tuple(wanted.values()))
            return [json.loads(content) for (content,) in rows]

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection in autocommit mode; SQLite's errors become RingmasterErrors."""
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
                yield connection
        except sqlite3.Error as error:
            code = "_".join(getattr(error, "sqlite_errorname", "SQLITE_ERROR").split("_")[:2])
            what, remedy = _ADVICE.get(code, ("could not be used", ""))
            raise self._error(f"{what} ({error})", remedy) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that has the write lock from its start, so that what it reads stays true until it commits."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection  # closing without COMMIT, after an exception, rolls back
            connection.execute("COMMIT")

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        return connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        # Asked again under the lock: another process may have done it in between.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if not self._is_ours(connection) and (version or connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
            raise self._error("is a SQLite file, but not a ledger", _ADVICE["SQLITE_NOTADB"][1])
        if version > len(UPGRADES):
            raise self._error(
                f"was written by a newer Ringmaster (schema {version}, this one knows up to {len(UPGRADES)})",
                "Use that Ringmaster, or set ringmaster_ledger to another path.",
            )
        for statement in (statement for step in UPGRADES[version:] for statement in step):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(UPGRADES)}")
        connection.execute("COMMIT")

    def _error(self, what: str, remedy: str) -> RingmasterError:
        return RingmasterError(f"The ledger {self.path} {what}.", remedy)


def _read_export(path: str) -> dict[int, tuple[str, dict]]:
    """{line number: (kind, record)}."""
    entries = {}
    number = 0
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    entry = json.loads(line)
                    if entry["kind"] not in KINDS:
                        raise ValueError(f"unknown kind {entry['kind']!r}")
                    entries[number] = (entry["kind"], dict(entry["record"]))
    except OSError as error:
        raise RingmasterError(f"{path} cannot be read: {error.strerror}.", "Give the path of an export of a ledger.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RingmasterError(
            f"{path}, line {number}, is not a record of a ledger ({error!r}).",
            "Nothing was merged. Export again and copy the whole file.",
        ) from error
    return entries


def _canonical(value: object) -> str:
    """The same text for the same content: what decides whether two records are equal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
