"""Small questions to the engine over HTTP, asked on the host itself."""

import http.client
import json

from ops.remote import keys


def connectable(bind):
    """The address to connect to for a server bound to `bind`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)


def get(address, port, path, api_key=None, timeout_s=5.0):
    """(status, parsed JSON or text), or (None, reason) when no answer came."""
    key = keys.read(api_key)
    connection = http.client.HTTPConnection(connectable(address), port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return None, str(error) or type(error).__name__
    finally:
        connection.close()
    try:
        return answer.status, json.loads(body)
    except ValueError:
        return answer.status, body


def ready(address, port, api_key=None):
    """The status by which the engine says that it takes requests: 200; None: no answer.

    Versions without /ready are asked for their health, which costs a generation: up to 20 s behind a long prefill.
    Source: SGLang 0.5.23 srt/entrypoints/http_server.py:714; the wheel of 0.5.17 has no such endpoint.
    """
    status, _ = get(address, port, "/ready", api_key)
    if status == 404:
        status, _ = get(address, port, "/health", api_key, timeout_s=25.0)
    return status


def running_requests(address, port, api_key=None):
    """Requests in the engine (running and waiting), or None when it does not tell.

    Source: `/v1/loads` of SGLang 0.5.17 and 0.5.23 (recordings); `/get_load` is gone in 0.5.23.
    """
    status, body = get(address, port, "/v1/loads", api_key)
    if status != 200 or not isinstance(body, dict):
        return None
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in body["loads"])
