# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to real HTTP servers, old and new, plain and with TLS, mute ones and ones that refuse."""

from __future__ import annotations

import http.server
import json
import shutil
import socket
import ssl
import subprocess
import threading

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import diagnosis, server_ask


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path in self.server.paths
        answer = json.dumps({"path": self.path, "key": self.headers.get("Authorization")}).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def serve():
    running = []

    def make(*paths, certificate=None):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.paths = paths
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"

    yield make
    for server in running:
        server.shutdown()
        server.server_close()


def ask(url, *, secure=False, key=None):
    return server_ask.get(url, server_ask.PATHS["model_info"], key, 5.0, secure=secure)


def test_the_newer_name_and_the_older(serve):
    assert ask(serve("/model_info", "/get_model_info"))[1]["path"] == "/model_info"
    assert ask(serve("/get_model_info"))[1]["path"] == "/get_model_info"
    assert ask(serve())[0] == 404


def test_the_key_is_sent(serve):
    assert ask(serve("/model_info"), key="k")[1]["key"] == "Bearer k"


def test_tls_with_any_certificate(serve, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    certificate = (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=elsewhere"]
    subprocess.run([*request, "-out", certificate[0], "-keyout", certificate[1]], check=True, capture_output=True)
    assert ask(serve("/model_info", certificate=certificate), secure=True)[0] == 200


def test_what_goes_wrong(serve):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with pytest.raises(TimeoutError) as late:
            server_ask.get(f"http://127.0.0.1:{mute.getsockname()[1]}", ("/ready",), None, 0.2, secure=False)
        port = mute.getsockname()[1]
    assert server_ask.status_of(late.value) == diagnosis.TIMED_OUT
    with pytest.raises(ConnectionRefusedError) as refused:
        ask(f"http://127.0.0.1:{port}")
    assert server_ask.status_of(refused.value) == "refused"
    assert server_ask.status_of((503, None)) == 503


@pytest.mark.parametrize(
    ("host", "flags", "url"),
    [
        ("0.0.0.0", {}, "http://127.0.0.1:8000"),
        ("::", {}, "http://[::1]:8000"),
        ("fe80::1", {}, "http://[fe80::1]:8000"),
        ("gpu1", {"ssl-certfile": "/c"}, "https://gpu1:8000"),
    ],
)
def test_where_a_server_is_asked(host, flags, url):
    assert server_ask.url_of({"listen": {"host": host, "port": 8000}, "flags": flags}) == url
