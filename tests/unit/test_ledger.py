# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger, on real SQLite files, with real processes and a real full disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import ledger as module
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.ledger import Ledger, redact


def trial(number: int, **more) -> dict:
    return {
        "id": f"t{number:03}",
        "host": "gpu1",
        "run": "r1",
        "arm": "baseline",
        "started": f"2026-01-02T10:00:{number % 60:02}Z",
        "discard": False,
        "fingerprint": {"gpu": "8x RTX", "nccl": "2.28.9"},
        "configuration": {"server": {"flags": {"tp-size": "4"}}},
        "workloads": [{"name": "c1", "decode_tok_s": 400.0 + number, "errors": 0}],
    } | more


def run(number: int, **more) -> dict:
    return {
        "id": f"r{number}",
        "host": "gpu1",
        "factor": "nccl_channels=2",
        "started": f"2026-01-0{number}T10:00:00Z",
        "verdict": "better",
    } | more


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "ledger.sqlite")


def raw(path: str, *statements: str) -> list:
    """Run statements as another program would; the rows of the last."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        rows: list = []
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


def test_records_come_back_as_they_were_oldest_first(path):
    ledger = Ledger(path)
    for number in (2, 0, 1):
        assert ledger.add_trial(trial(number)) is True
    assert ledger.trials() == [trial(0), trial(1), trial(2)]
    assert Ledger(path).trials() == ledger.trials()


def test_queries(path):
    ledger = Ledger(path)
    records = [trial(0), trial(1, host="gpu2"), trial(2, run="r2")]
    for record in records:
        ledger.add_trial(record)
    for record in (run(1), run(3), run(2), run(4, factor="tp-size"), run(5, host="gpu2")):
        ledger.add_run(record)
    assert ledger.trials(host="gpu1") == [records[0], records[2]]
    assert ledger.trials(run="r1") == records[:2]
    assert ledger.trials(host="gpu1", run="r1") == records[:1]
    assert [r["id"] for r in ledger.runs()] == ["r1", "r2", "r3", "r4", "r5"]
    assert [r["id"] for r in ledger.runs(host="gpu2")] == ["r5"]
    assert ledger.last_run("gpu1", "nccl_channels=2") == run(3)
    assert ledger.last_run("gpu3", "nccl_channels=2") is None


def test_baselines_are_the_measured_ones_of_the_same_fingerprint(path):
    ledger = Ledger(path)
    faulty = [{"name": "c1", "decode_tok_s": 1.0, "errors": 3}]
    for record in (
        trial(1, fingerprint={"nccl": "2.28.9", "gpu": "8x RTX"}),  # the same in another order
        trial(2, fingerprint={"gpu": "8x RTX", "nccl": "2.27"}),
        trial(3, arm="candidate"),
        trial(4, discard=True),
        trial(5, workloads=faulty),
        trial(6, workloads=None),
        trial(7, host="gpu2"),
    ):
        ledger.add_trial(record)
    assert ledger.baselines("gpu1", {"gpu": "8x RTX", "nccl": "2.28.9"}, "c1") == [
        {"trial": "t001", "run": "r1", "started": "2026-01-02T10:00:01Z", "configuration": trial(1)["configuration"], "decode_tok_s": 401.0}
    ]
    assert ledger.baselines("gpu1", {"gpu": "8x RTX", "nccl": "2.28.9"}, "c4") == []


def test_the_same_record_twice_is_one_and_another_with_its_id_is_refused(path):
    ledger = Ledger(path)
    assert ledger.add_run(run(1)) is True
    assert ledger.add_run(dict(reversed(run(1).items()))) is False
    with pytest.raises(RingmasterError, match="already has another run with id r1"):
        ledger.add_run(run(1, verdict="worse"))
    assert ledger.runs() == [run(1)]


@pytest.mark.parametrize("table", ["trials", "runs"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {} SET content = '{{}}'",
        "DELETE FROM {}",
        "INSERT OR REPLACE INTO {0} SELECT * FROM {0}",
        "REPLACE INTO {0} (id, host, started, content) SELECT id, host, started, '{{}}' FROM {0}",
    ],
)
def test_append_only_for_everybody(path, table, statement):
    ledger = Ledger(path)
    ledger.add_trial(trial(1))
    ledger.add_run(run(1))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        raw(path, statement.format(table))
    assert (ledger.trials(), ledger.runs()) == ([trial(1)], [run(1)])


@pytest.mark.parametrize("field", ["id", "host", "started"])
@pytest.mark.parametrize("value", [None, "", 7])
def test_a_record_without_identity_is_refused(path, field, value):
    with pytest.raises(RingmasterError, match=f"whose {field} is"):
        Ledger(path).add_trial(trial(1, **{field: value}))


@pytest.mark.parametrize("value", [float("nan"), {1, 2}])
def test_what_json_cannot_hold_is_refused(path, value):
    with pytest.raises(RingmasterError, match="JSON cannot hold"):
        Ledger(path).add_trial(trial(1, outputs=value))


def test_bytes_of_a_log_that_are_no_text_survive(path):
    record = trial(1, cause={"evidence": [b"\xff \xe2\x80\xa6".decode("utf-8", "surrogateescape"), "a\u2028b\r\n"]})
    ledger = Ledger(path)
    ledger.add_trial(record)
    export = path + ".jsonl"
    ledger.export_jsonl(export)
    other = Ledger(path + ".2")
    assert other.merge_jsonl(export) == (1, 0)
    assert ledger.trials() == other.trials() == [record]


def test_created_private_with_its_directories_whatever_the_umask(tmp_path):
    path = tmp_path / "a" / "b" / "ledger.sqlite"
    former = os.umask(0)
    try:
        Ledger(str(path))
    finally:
        os.umask(former)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def add_many(path: str, worker: int, gate, inherited: Ledger | None = None) -> None:
    gate.wait()
    ledger = inherited or Ledger(path)
    for number in range(50):
        ledger.add_trial(trial(number, id=f"{worker}-{number}"))
        ledger.add_run(run(1, id=f"shared-{number % 10}"))  # the same in all processes: one may win, none may fail


@pytest.mark.parametrize("inherit", [False, True], ids=["each opens", "forked with it"])
def test_eight_processes_at_once(path, inherit):
    fork = multiprocessing.get_context("fork")
    gate = fork.Barrier(8)
    ledger = Ledger(path) if inherit else None
    processes = [fork.Process(target=add_many, args=(path, worker, gate, ledger)) for worker in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 8
    found = Ledger(path)
    assert {t["id"] for t in found.trials()} == {f"{worker}-{number}" for worker in range(8) for number in range(50)}
    assert len(found.runs()) == 10
    assert raw(path, "PRAGMA integrity_check") == [("ok",)]


def test_an_empty_file_becomes_a_ledger(path):
    Path(path).touch()
    Ledger(path).add_run(run(1))
    assert raw(path, "PRAGMA user_version") == [(1,)]


def test_an_upgrade_keeps_every_record(path, monkeypatch):
    """A ledger of schema 0 that has a table already, as an upgrade of a later release will find it."""
    raw(path, f"PRAGMA application_id = {module.APPLICATION_ID}", "CREATE TABLE old (id TEXT, host TEXT, started TEXT, content TEXT)")
    raw(path, f"INSERT INTO old VALUES ('r1', 'gpu1', '2026', '{json.dumps(run(1))}')")
    moved = ("INSERT INTO runs (id, host, started, content) SELECT id, host, started, content FROM old", "DROP TABLE old")
    later = ("ALTER TABLE runs ADD COLUMN note TEXT",)
    monkeypatch.setattr(module, "UPGRADES", (module.UPGRADES[0] + moved, later))
    assert Ledger(path).runs() == [run(1)]
    assert raw(path, "PRAGMA user_version") == [(2,)]
    assert raw(path, "SELECT name FROM sqlite_master WHERE name = 'old'") == []


def test_an_upgrade_that_fails_leaves_the_ledger_as_it_was(path, monkeypatch):
    Ledger(path).add_run(run(1))
    with monkeypatch.context() as patch:
        patch.setattr(module, "UPGRADES", (*module.UPGRADES, ("ALTER TABLE runs ADD COLUMN note TEXT", "ALTER TABLE missing ADD COLUMN x")))
        with pytest.raises(RingmasterError, match="no such table: missing"):
            Ledger(path)
    assert raw(path, "PRAGMA user_version") == [(1,)]
    assert "note" not in [column[1] for column in raw(path, "PRAGMA table_info(runs)")]
    assert Ledger(path).runs() == [run(1)]


def test_a_newer_schema_is_refused_untouched(path):
    Ledger(path)
    raw(path, "PRAGMA user_version = 99")
    before = Path(path).read_bytes()
    with pytest.raises(RingmasterError, match="newer Ringmaster .schema 99, this one knows up to 1") as caught:
        Ledger(path)
    assert path in caught.value.what
    assert caught.value.remedy
    assert Path(path).read_bytes() == before


def test_a_file_of_something_else_is_refused_untouched(path):
    Path(path).write_text("host: gpu1\n" * 500)
    with pytest.raises(RingmasterError, match=r"ledger\.sqlite is not a ledger") as caught:
        Ledger(path)
    assert "ringmaster_ledger" in caught.value.remedy
    assert Path(path).read_text() == "host: gpu1\n" * 500


def test_a_database_of_another_program_is_refused_untouched(path):
    raw(path, "CREATE TABLE cookies (name TEXT)", "PRAGMA user_version = 1")
    before = Path(path).read_bytes()
    with pytest.raises(RingmasterError, match="SQLite file, but not a ledger"):
        Ledger(path)
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("place", ["/proc/ringmaster/ledger.sqlite", "/proc/ledger.sqlite", "FILE/ledger.sqlite", "."])
def test_a_place_that_cannot_be_written(tmp_path, monkeypatch, place):
    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RingmasterError, match="cannot be opened") as caught:
        Ledger(place)
    assert os.path.abspath(place) in caught.value.what
    assert "ringmaster_ledger" in caught.value.remedy


def test_a_lock_that_is_held_too_long(path, monkeypatch):
    ledger = Ledger(path)
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.1)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(RingmasterError, match="in use by another process") as caught:
        ledger.add_run(run(1))
    assert path in caught.value.what
    holder.close()
    assert ledger.add_run(run(1)) is True


FILL = """
import sys
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.ledger import Ledger
ledger, number = Ledger(sys.argv[1]), 0
try:
    while number < 1000:
        ledger.add_run({"id": str(number), "host": "h", "started": "2026", "text": "x" * 5000})
        number += 1
except RingmasterError as error:
    assert number > 0 and len(Ledger(sys.argv[1]).runs()) == number, "what was recorded before is lost"
    print(error)
"""


def test_a_full_disk(tmp_path):
    command = 'mount -t tmpfs -o size=256k ringmaster-test "$1" || exit 77; exec "$2" -c "$3" "$1/ledger.sqlite"'
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    done = subprocess.run(
        [*namespace, "sh", "-c", command, "sh", str(tmp_path), sys.executable, FILL],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"no private mount here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/ledger.sqlite cannot grow: the disk is full" in done.stdout
    assert "Free space" in done.stdout


def test_export_and_merge(path):
    ledger, export = Ledger(path), path + ".jsonl"
    ledger.add_trial(trial(1))
    ledger.add_run(run(1))
    assert ledger.export_jsonl(export) == 2
    assert stat.S_IMODE(os.stat(export).st_mode) == 0o600
    assert [json.loads(line) for line in Path(export).read_text().splitlines()] == [
        {"kind": "trial", "record": trial(1)},
        {"kind": "run", "record": run(1)},
    ]
    other = Ledger(path + ".2")
    other.add_run(run(1))
    other.add_run(run(2))
    assert other.merge_jsonl(export) == (1, 1)
    assert other.merge_jsonl(export) == (0, 2)
    assert (other.trials(), other.runs()) == ([trial(1)], [run(1), run(2)])


@pytest.mark.parametrize(
    ("last_line", "message"),
    [
        ('{"kind": "run", "rec', "line 3, is not a record"),
        ('{"kind": "sermon", "record": {}}', "line 3, is not a record.*sermon"),
        ('{"record": {}}', "line 3, is not a record"),
        ("[]", "line 3, is not a record"),
        ('{"kind": "run", "record": {"id": "r9"}}', "line 3: .* whose host is None"),
        ('{"kind": "run", "record": {"id": "r1", "host": "gpu1", "started": "2026"}}', "line 3: .* already has another run with id r1"),
    ],
)
def test_a_faulty_export_adds_nothing(path, last_line, message):
    ledger, export = Ledger(path), Path(path + ".jsonl")
    ledger.add_run(run(1))
    export.write_text(json.dumps({"kind": "run", "record": run(2)}) + "\n\n" + last_line + "\n")
    with pytest.raises(RingmasterError, match=message) as caught:
        ledger.merge_jsonl(str(export))
    assert str(export) in caught.value.what
    assert "Nothing was merged" in caught.value.remedy
    assert ledger.runs() == [run(1)]


def test_an_export_that_is_not_there(path):
    with pytest.raises(RingmasterError, match="nowhere.jsonl cannot be read: No such file"):
        Ledger(path).merge_jsonl("nowhere.jsonl")


SECRETS = {
    "server": {"flags": {"api-key": "s3cret", "admin-api-key": ["s3cret"], "ssl-keyfile-password": "s3cret", "served-model-name": "m"}},
    "environment": {"HF_TOKEN": "s3cret", "AWS_SECRET_ACCESS_KEY": "s3cret", "OPENAI_APIKEY": "s3cret", "DB_PASSWORD": "s3cret"},
    "nested": [{"token": {"value": "s3cret"}}],
    "proxy": {"HTTPS_PROXY": "http://me:s3cret@proxy:3128/"},
}
PLAIN = {
    "server": {
        "flags": {
            "tokenizer-path": "/m",
            "tokenizer-worker-num": "2",
            "max-total-tokens": "9000",
            "speculative-num-draft-tokens": "3",
            "speculative-token-map": "/map",
            "ssl-keyfile": "/k",
            "trust-remote-code": True,
            "download-dir": None,
        }
    },
    "nccl": {"settings": {"NCCL_MAX_NCHANNELS": "2"}},
    "environment": {"URL": "http://host:80/a@b"},
}


def test_redaction():
    before = json.dumps(SECRETS)
    assert "s3cret" not in json.dumps(redact(SECRETS))
    assert json.dumps(redact(SECRETS)).count("***") == 9
    assert json.dumps(SECRETS) == before, "the configuration in use keeps its secrets"
    assert redact(SECRETS)["server"]["flags"]["served-model-name"] == "m"
    assert redact(SECRETS)["proxy"]["HTTPS_PROXY"] == "http://***@proxy:3128/"
    assert redact(PLAIN) == PLAIN


def test_no_secret_reaches_the_file(path):
    ledger = Ledger(path)
    ledger.add_trial(trial(1, configuration=SECRETS))
    ledger.add_run(run(1, candidate=SECRETS))
    assert ledger.add_trial(trial(1, configuration=SECRETS)) is False
    assert b"s3cret" not in Path(path).read_bytes()
