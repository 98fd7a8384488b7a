# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is at the other end of the connection is no Proxmox VE, or none yet: each told apart, for what passes is waited for."""

from __future__ import annotations

import re
import socket
import threading

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from pve_lab import run


@pytest.fixture
def peer():
    """A server of one's own: peer(answer) gives its port; each connection is sent ANSWER after its first bytes, and closed."""
    listening = []

    def serve(answer, read_first=True):
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def loop():
            while True:
                try:
                    connection, _address = server.accept()
                except OSError:
                    return
                with connection:
                    if read_first:
                        connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=loop, daemon=True).start()
        return server.getsockname()[1]

    yield serve
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def failure(port, **changes):
    options = {"api_host": "127.0.0.1", "api_port": port, "api_user": "root@pam", "api_password": "geheim", "vmid": 101, "api_timeout": 5}
    with pytest.raises(RingmasterError) as caught:
        run({**options, **changes})
    return caught.value


@pytest.mark.parametrize("read_first", [True, False])
def test_a_connection_that_is_cut_while_it_begins_is_no_matter_of_certificates(peer, read_first):
    """A proxy without a server behind it, or pveproxy while it restarts."""
    error = failure(peer(b"", read_first))
    assert "closed the connection before it answered the login" in str(error)
    assert "certificate" not in str(error)
    assert error.passing


def test_a_port_that_does_not_speak_tls(peer):
    error = failure(peer(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    assert "does not speak TLS" in str(error)
    assert "api_port (8006)" in str(error)
    assert not error.passing


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("127.0.0.1", "https://127.0.0.1:1"),
        ("127.0.0.1:2/", "https://127.0.0.1:2"),
        ("HTTPS://127.0.0.1", "https://127.0.0.1:1"),
        ("::1", "https://[::1]:1"),
        ("[::1]", "https://[::1]:1"),
        ("[::1]:2", "https://[::1]:2"),
        ("https://[::1]:2/", "https://[::1]:2"),
        ("https://::1", "https://[::1]:1"),
    ],
)
@pytest.mark.parametrize("token", [{}, {"api_password": None, "api_token_id": "t", "api_token_secret": "s"}])
def test_a_host_in_any_spelling_is_told_in_one(host, where, token):
    assert re.search(rf"^{re.escape(where)} (refuses|is unreachable)", str(failure(1, api_host=host, **token)))


@pytest.mark.parametrize(
    "host", ["http://pve1", "https://pve1/pve", "no host", "https://", " ", "pve1,pve2", "root:geheim@pve1", "pve1:port"]
)
def test_a_host_that_is_none_is_refused_by_name(host):
    said = str(failure(1, api_host=host))
    assert said.startswith("api_host is ")
    assert "geheim" not in said


@pytest.mark.parametrize("option", ["api_user", "api_token_id", "api_token_secret"])
@pytest.mark.parametrize("bad", ["a\nb", "a\x00b", "s\u20ac", "\ufeffa"])
def test_what_no_header_can_hold_is_refused_by_name_and_not_shown(option, bad):
    given = {"api_password": None, "api_user": "root@pam", "api_token_id": "t", "api_token_secret": "x"}
    said = str(failure(1, **{**given, option: bad + "geheim"}))
    assert said.startswith(f"{option} has a character in it that cannot be sent")
    assert "geheim" not in said
