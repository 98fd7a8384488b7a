# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that the server's user, or a server gone mad, can put before a supervisor that is root."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import (
    http_client,
    log_cap,
    log_lines,
    nccl_log,
    proof,
    readiness,
    server_log,
    smoke,
    sockets,
)


@pytest.mark.parametrize("text", ["{}", "[1]", "null", "[" * 100_000, '{"pid": "7", "nccl": {}}', '{"pid": 7, "nccl": null}'])
def test_a_witness_that_is_none_is_passed_over(tmp_path, text):
    (tmp_path / "1.json").write_text(text)
    (tmp_path / "2.json").write_text(json.dumps({"pid": 2, "nccl": {"NCCL_PROTO": "LL"}, "applied": None}))
    os.mkfifo(tmp_path / "3.json")
    (tmp_path / "4.json").symlink_to(tmp_path / "2.json")
    found = proof.read_witnesses(str(tmp_path))
    assert list(found) == [2]
    assert proof.effective({}, 2, found, configured={}, given={}) == {}


def test_a_link_is_neither_folded_nor_cut_nor_read(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"gpuhost:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL\n" * 1000)
    before = victim.read_bytes()
    (tmp_path / "nccl").mkdir()
    link = tmp_path / "nccl" / "link"
    link.symlink_to(victim)
    for touch in (lambda: log_lines.fold(str(link), cap_bytes=1000), lambda: log_cap.punch(str(link), cap_bytes=1000)):
        with pytest.raises(OSError, match="symbolic"):
            touch()
    assert nccl_log.read(str(tmp_path / "nccl")) == {}
    assert victim.read_bytes() == before


def test_a_flood_is_read_at_both_ends(tmp_path):
    path = tmp_path / "server.log"
    line = b"[2026-11-30 10:00:01] INFO:     127.0.0.1:1 - \"GET / HTTP/1.1\" 200 OK\n"
    head = b"[2026-11-30 10:00:00] server_args=ServerArgs(model_path='/m')\n[2026-11-30 10:00:00] Load weight begin. avail mem=9 GB\n"
    path.write_bytes(head + line * 1_000_000 + b"[2026-11-30 10:00:09] The server is fired up and ready to roll!\n")
    reader = server_log.LogReader(str(path))
    begun = time.process_time()
    reader.poll()
    assert time.process_time() - begun < 20, "two megabytes, not seventy"
    assert [row["name"] for row in reader.phases] == ["spawn", "import", "weights", "ready_line"]
    assert reader.size == path.stat().st_size


def test_a_growing_log_keeps_its_head_and_its_tail_and_gives_the_rest_back(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(b"first\n" + b"x" * 99 * 100 * 1024 + b"\nlast\n")
    hole = log_cap.punch(str(path), cap_bytes=1 << 20)
    if not hole:
        pytest.skip("this file system cannot punch holes")
    assert path.stat().st_blocks * 512 < 2 << 20 < hole
    log_lines.fold(str(path), cap_bytes=1 << 20)
    text = path.read_bytes()
    assert text.startswith(b"first\n")
    assert text.endswith(b"\nlast\n")
    assert b"\0" not in text
    assert log_cap.punch(str(tmp_path / "gone"), cap_bytes=1) == 0


@pytest.mark.parametrize(
    ("rank", "outcome", "reason"),
    [
        ("raise SystemExit(0)", "failed", "rank 0 ended with 0"),
        ("import os; os.abort()", "failed", "rank 0 ended with -6"),
        ("import sys\nwhile True:\n    sys.stderr.write('x' * 4096 + '\\n')", "hung", "torch not imported after"),
        ("import time; time.sleep(60)", "hung", "torch not imported after"),
    ],
)
def test_a_smoke_that_goes_wrong(tmp_path, rank, outcome, reason):
    (tmp_path / "torch.py").write_text(rank)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    found = smoke.run(sys.executable, environment, str(tmp_path), stall_timeout_s=2.0, check=lambda: None)
    assert (found["outcome"], found["reason"][: len(reason)]) == (outcome, reason)
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.glob("smoke.*")) < 64 << 20


def test_a_listener_on_another_address_is_nobodys_hindrance():
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert readiness.whose_port(port, []) == "free"
        assert sockets.is_open(port, "::1")
        assert readiness.whose_port(port, [], "::1") == "foreign"


@pytest.mark.parametrize("head", [b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, b"HTTP/1.1 \xb2\xb2\xb2 x\r\n\r\n",
                                  b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"])  # fmt: skip
def test_a_mad_head_is_an_http_error_or_waits(head):
    response = http_client.Response()
    try:
        response.feed(head)
    except http_client.HttpError:
        return
    assert not response.done
