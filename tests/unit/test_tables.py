# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables, as they are read."""

from __future__ import annotations

import textwrap

import pytest
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.tables import results_table, status_table, versions_table

ROW = {
    "host": "localhost",
    "factor": "nccl_channels=2",
    "baseline_tok_s": 403.84,
    "candidate_tok_s": 428.4,
    "ratio": 1.061,
    "low": 1.052,
    "high": 1.0703,
    "starts": [3, 3],
    "verdict": "better",
    "reason": "c1: +6.1 % (+5.2 to +7.0), 95% interval by paired t on logarithms, by block.",
    "done": "kept as version 2",
    "log": "/srv/ringmaster/trials/20260102T100000-0007/server.log",
    "simulated": True,
    "next": "ansible-playbook rollback.yml -e rollback_version=1",
}
LOST = {
    "host": "gpu-host-17.example.org",
    "factor": "nccl_profile=few_channels",
    "baseline_tok_s": 1558.0,
    "candidate_tok_s": 1230.0,
    "ratio": 0.7895,
    "low": 0.78,
    "high": 0.79996,
    "starts": [3, 2],
    "verdict": "inconclusive",
    "done": "known-good stays",
    "log": "/var/lib/ringmaster/trials/1/server.log",
}
FAILED = {"host": "gpu2", "factor": "enable-flashinfer-allreduce-fusion=true", "verdict": "failed", "starts": [1, 0], "simulated": False}


def shown(text: str) -> str:
    return textwrap.dedent(text).removeprefix("\n")


def column(table: str, number: int) -> str:
    """All of one column, put together without spaces."""
    lines = table.splitlines()
    widths = [len(part) for part in lines[2].split(" ")]
    start = sum(widths[:number]) + number
    return "".join(line[start : start + widths[number]].strip() for line in lines)


def test_one_simulated_row():
    assert results_table([ROW], encoding="utf-8") == shown(
        """
        host      factor          baseline candidate change        starts verdict
                                     tok/s     tok/s (interval)
        --------- --------------- -------- --------- ------------- ------ ---------
        localhost nccl_channels=2    403.8     428.4 +6.1 %        3+3    better
                                                     (+5.2 … +7.0)        SIMULATED
          done:   kept as version 2
          reason: c1: +6.1 % (+5.2 to +7.0), 95% interval by paired t on logarithms, by
                  block.
          log:    /srv/ringmaster/trials/20260102T100000-0007/server.log
          next:   ansible-playbook rollback.yml -e rollback_version=1

        SIMULATED: localhost ran a stand-in engine. Its figures say nothing about a real
        server.
        """
    )


def test_several_rows_with_long_names_and_without_figures():
    assert results_table([LOST, FAILED], encoding="utf-8") == shown(
        """
        host         factor       baseline candidate change          starts verdict
                                     tok/s     tok/s (interval)
        ------------ ------------ -------- --------- --------------- ------ ------------
        gpu-host-17. nccl_          1558.0    1230.0 -21.1 %         3+2    inconclusive
        example.org  profile=few_                    (-22.0 … -20.0)
                     channels
          done:   known-good stays
          log:    /var/lib/ringmaster/trials/1/server.log
        gpu2         enable-             -         - -               1+0    failed
                     flashinfer-
                     allreduce-
                     fusion=true
        """
    )


def test_a_wide_terminal_keeps_cells_whole():
    assert results_table([LOST], width=120, encoding="utf-8").splitlines()[3] == (
        "gpu-host-17.example.org nccl_profile=few_channels   1558.0    1230.0 -21.1 % (-22.0 … -20.0) 3+2    inconclusive"
    )


def test_ascii_where_the_terminal_knows_no_more():
    table = results_table([ROW | {"host": "büro", "reason": "12 µs – a lot"}], encoding="ANSI_X3.4-1968")
    assert table.isascii()
    assert "(+5.2 .. +7.0)" in table
    assert "b?ro" in table
    assert "12 us - a lot" in table
    assert results_table([ROW], encoding="UTF8") == results_table([ROW], encoding="utf-8")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [76, 80, 100])
@pytest.mark.parametrize(
    "rows", [[ROW], [LOST, ROW], [FAILED, LOST, ROW | {"factor": "x" * 90, "host": "y" * 70, "reason": "long … " * 40}]]
)
def test_it_fits(rows, width, encoding):
    table = results_table(rows, width=width, encoding=encoding)
    assert max(map(len, table.splitlines())) <= width
    assert all(row.get("log", "") in table for row in rows)
    bare = results_table([row | {"done": None, "reason": None, "log": None, "next": None, "simulated": False} for row in rows], width=width)
    assert max(map(len, bare.splitlines())) <= width
    for row in rows:
        assert row["host"] in column(bare, 0), "a wrapped name is still whole"
        assert row["factor"] in column(bare, 1)


def test_a_name_is_cut_after_a_mark_unless_that_leaves_a_stump():
    bare = results_table(
        [FAILED | {"host": "a-" + "b" * 40, "factor": "long_name=" + "c" * 40, "verdict": "inconclusive"}], encoding="utf-8"
    )
    first = bare.splitlines()[3].split()
    assert first[0].startswith("a-bbbb")
    assert first[1] == "long_name="


def test_a_path_or_command_is_never_cut():
    row = ROW | {"log": "/srv/" + "deep/" * 30 + "server.log", "next": "ansible-playbook tune.yml " + "-e a=b " * 20 + "-e c=d"}
    lines = results_table([row], encoding="utf-8").splitlines()
    assert f"  log:    {row['log']}" in lines
    assert f"  next:   {row['next']}" in lines


def test_simulated_is_said_for_exactly_the_simulated_rows():
    table = results_table([ROW, LOST, ROW | {"host": "lab2"}], encoding="utf-8")
    assert table.count("SIMULATED") == 3
    assert "SIMULATED: localhost, lab2 ran a stand-in" in table
    assert "SIMULATED" not in results_table([LOST, FAILED], encoding="utf-8")


def test_a_log_quoted_in_a_reason_cannot_drive_the_terminal():
    table = results_table([FAILED | {"reason": "\x1b[31mred\x1b[0m\r\nnext\x07 line"}], encoding="utf-8")
    assert table.replace("\n", "").isprintable()
    assert "[31mred [0m next line" in table


@pytest.mark.parametrize(
    ("ratio", "low", "high", "expected"),
    [
        (1.0, 0.9996, 1.0004, "+0.0 % (+0.0 … +0.0)"),
        (0.97, 0.9, None, "-3.0 %"),
        (None, None, None, "-"),
        (1.061, 1.05, 1.07, "+6.1 % (+5.0 … +7.0)"),
    ],
)
def test_changes(ratio, low, high, expected):
    line = results_table([LOST | {"ratio": ratio, "low": low, "high": high}], width=140, encoding="utf-8").splitlines()[3]
    assert line.split("1230.0", 1)[1].split("3+2")[0].strip() == expected


def test_status():
    rows = [
        {
            "host": "gpu1",
            "who": "root@ctl, pid 4711",
            "since": "2026-01-02 10:00:00Z",
            "step": "3 of 8",
            "phase": "weights 12/64",
            "lease_s": 87.3,
        },
        {"host": "gpu2", "who": "root@ctl, pid 4711", "since": "2026-01-02 10:00:00Z", "step": None, "phase": "waits for a decision"},
    ]
    assert status_table(rows, encoding="utf-8") == shown(
        """
        host who                since                step   phase                lease
        ---- ------------------ -------------------- ------ -------------------- -----
        gpu1 root@ctl, pid 4711 2026-01-02 10:00:00Z 3 of 8 weights 12/64         87 s
        gpu2 root@ctl, pid 4711 2026-01-02 10:00:00Z -      waits for a decision     -
        """
    )


def test_versions():
    rows = [
        {"version": 1, "date": "2026-01-02", "by": "adopted", "label": "found at first contact"},
        {"version": 12, "date": "2026-01-03", "by": "root@ctl", "label": "nccl_channels=2", "current": True},
    ]
    assert versions_table(rows, encoding="utf-8") == shown(
        """
          version date       by       label
        - ------- ---------- -------- ----------------------
                1 2026-01-02 adopted  found at first contact
        *      12 2026-01-03 root@ctl nccl_channels=2

        * in force
        """
    )


def test_nothing_to_show():
    assert (results_table([]), status_table([]), versions_table([])) == (
        "No host was measured.\n",
        "No run is in progress.\n",
        "No version of known-good is recorded.\n",
    )
