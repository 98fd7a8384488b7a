# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to a running server that have no side effect: they generate nothing and do not touch its health."""

from __future__ import annotations

import http.client
import json
import ssl

from . import diagnosis, http_client

# The older name is asked where the newer is not known. /health is never asked: it generates a token and can mark a busy server unhealthy.
PATHS = {"model_info": ("/model_info", "/get_model_info"), "server_info": ("/server_info", "/get_server_info"), "ready": ("/ready",)}


def url_of(server):
    """Where a server with that command (server_command.parse) is asked from its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(server["listen"]["host"], server["listen"]["host"])
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    scheme = "https" if "ssl-certfile" in server["flags"] else "http"
    return f"{scheme}://{host}:{server['listen']['port']}"


def get(url, paths, api_key, timeout_s, *, secure):
    """(status, JSON or None) of the first of PATHS that the server knows. Raises OSError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    for path in paths:
        status, body = (_get_secure if secure else _get_plain)(url, path, headers, timeout_s)
        if status != 404:
            break
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    return status, answer if isinstance(answer, dict) else None


def _get_plain(url, path, headers, timeout_s):
    return http_client.request("GET", url + path, headers=headers, timeout_s=timeout_s)


def _get_secure(url, path, headers, timeout_s):
    unverified = ssl.create_default_context()  # it is this machine's own port; its name need not be in the certificate
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(url.partition("://")[2], timeout=timeout_s, context=unverified)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise http_client.HttpError(str(error)) from error
    finally:
        connection.close()


def status_of(answer):
    """What `diagnosis` wants of an answer: a status, or what went wrong."""
    if isinstance(answer, TimeoutError):
        return diagnosis.TIMED_OUT
    if isinstance(answer, ConnectionRefusedError):
        return "refused"
    return answer[0] if isinstance(answer, tuple) else str(answer)
