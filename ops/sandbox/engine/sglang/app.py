"""HTTP: the native endpoints, who may call them, and how errors look.

Source: SGLang 0.5.23 srt/entrypoints/http_server.py, srt/utils/auth.py.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from . import info, logs, metrics, openai, text
from .server import BadRequest, Server

Endpoint = Callable[[HttpRequest], Awaitable[Response]]
ADMIN_OPTIONAL = (
    "/flush_cache",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/set_internal_state",
    "/freeze_gc",
    "/start_profile",
    "/stop_profile",
)
OPEN_PREFIXES = ("/health", "/ready", "/metrics")
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


def build_app(server: Server, lifespan: Lifespan[Starlette]) -> ASGIApp:
    routes = [*_native_routes(server), *openai.routes(server)]
    if server.plan.arguments["enable_metrics"]:
        routes.append(Route("/metrics", _metrics(server)))
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error, BadRequest: _bad_request},
    )
    return Gatekeeper(app, server)


class Gatekeeper:
    """Checks keys and counts requests before the application sees them."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server = app, server
        arguments = server.plan.arguments
        self._api_key: str | None = arguments["api_key"]
        self._admin_key: str | None = arguments["admin_api_key"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._server.knobs.refresh()
        scope["arrived_at"] = self._server.clock.now()
        method, path = scope["method"], scope["path"]
        counters = self._server.scheduler.counters
        counters.http_requests[(path, method)] += 1
        counters.http_active[(path, method)] += 1

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                counters.http_responses[(path, method, str(message["status"]))] += 1
            await send(message)

        try:
            if self._allowed(scope):
                await self._app(scope, receive, counted)
            else:
                await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, counted)
        finally:
            counters.http_active[(path, method)] -= 1

    def _allowed(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if scope["method"] == "OPTIONS" or path.startswith(OPEN_PREFIXES):
            return True
        header = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"authorization"), "")
        if path in ADMIN_OPTIONAL and self._admin_key:
            return bearer(header, self._admin_key)
        return bearer(header, self._api_key) if self._api_key else True


def bearer(header: str, expected: str) -> bool:
    kind, _, token = header.partition(" ")
    return kind.lower() == "bearer" and secrets.compare_digest(token.encode(), expected.encode())


async def read_json(http: HttpRequest) -> dict[str, Any]:
    """Return the JSON object of the body.

    Raises:
        BadRequest: when the body is anything else.
    """
    try:
        body = json.loads(await http.body() or b"{}")
    except ValueError as error:
        raise BadRequest(f"Invalid JSON body: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("Request body must be a JSON object.")
    return body


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, status_code=error.status_code)


async def _bad_request(http: HttpRequest, error: Exception) -> Response:
    logs.line(f"[http_server] Error: {error}")
    if http.url.path.startswith("/v1/"):
        return JSONResponse(
            {"object": "error", "message": str(error), "type": "BadRequestError", "param": None, "code": 400},
            status_code=400,
        )
    return JSONResponse({"error": {"message": str(error)}}, status_code=400)


def _native_routes(server: Server) -> list[Route]:
    any_verb = ["GET", "POST"]
    return [
        Route("/", _fixed(PlainTextResponse, "SGLang is running")),
        Route("/ready", _ready(server)),
        Route("/health", _health(server)),
        Route("/health_generate", _health(server)),
        Route("/ping", _ping(server)),
        Route("/model_info", _json(server, info.model_info)),
        Route("/get_model_info", _deprecated(server, "model_info", info.model_info)),
        Route("/server_info", _json(server, info.server_info)),
        Route("/get_server_info", _deprecated(server, "server_info", info.server_info)),
        Route("/v1/loads", _json(server, info.loads)),
        Route("/generate", _generate(server), methods=["POST", "PUT"]),
        Route("/flush_cache", _flush_cache(server), methods=any_verb),
        Route("/abort_request", _abort(server), methods=["POST"]),
        Route("/freeze_gc", _fixed(PlainTextResponse, "Garbage collection frozen.\n"), methods=["POST"]),
        Route("/pause_generation", _pause(server, True), methods=["POST"]),
        Route("/continue_generation", _pause(server, False), methods=["POST"]),
    ]


def _fixed(kind: type[Response], content: str) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        return kind(content)

    return endpoint


def _json(server: Server, body: Callable[[Server], dict[str, Any]]) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        return JSONResponse(body(server))

    return endpoint


def _deprecated(server: Server, name: str, body: Callable[[Server], dict[str, Any]]) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        logs.line(
            f"Endpoint '/get_{name}' is deprecated and will be removed in a future version. "
            f"Please use '/{name}' instead."
        )
        return JSONResponse(body(server))

    return endpoint


def _metrics(server: Server) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        return Response(metrics.render(server), media_type="text/plain; version=0.0.4; charset=utf-8")

    return endpoint


def _ready(server: Server) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        up = server.status == "up" and not server.draining and not server.paused
        return Response(status_code=200 if up else 503)

    return endpoint


def _ping(server: Server) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        return Response(status_code=200 if server.status == "up" and not server.draining else 503)

    return endpoint


def _health(server: Server) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        if http.url.path == "/health" and not server.draining and server.status != "starting" and not server.probes:
            return Response(status_code=200)
        return Response(status_code=200 if await server.healthy() else 503)

    return endpoint


def _generate(server: Server) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        body = await read_json(http)
        prompts, single = _prompts(body)
        if body.get("stream") and not single:
            raise BadRequest("streaming a list of prompts is not simulated")
        requests = [server.new_request(body, prompt) for prompt in prompts]
        for request in requests:
            server.submit(request, http.scope["arrived_at"])
        if body.get("stream"):
            return StreamingResponse(_stream(server, requests[0], http), media_type="text/event-stream")
        for request in requests:
            await server.finish(request, http)
        bodies = [info.generate_body(server, request) for request in requests]
        return JSONResponse(bodies[0] if single else bodies)

    return endpoint


async def _stream(server: Server, request: Any, http: HttpRequest) -> AsyncIterator[bytes]:
    async for state in server.follow(request, http):
        if state.done and state.cut:
            # A truncated stream ends without its last chunk and without [DONE].
            return
        if state.visible():
            yield b"data: " + json.dumps(info.generate_body(server, state), ensure_ascii=False).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _prompts(body: dict[str, Any]) -> tuple[list[list[int]], bool]:
    """Return the prompts of a /generate body as token ids, and whether there was a single one."""
    given, ids = body.get("text"), body.get("input_ids")
    if isinstance(given, str):
        return [text.tokenize(given) or [0]], True
    if isinstance(given, list) and given and all(isinstance(t, str) for t in given):
        return [text.tokenize(t) or [0] for t in given], False
    if isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids):
        return [ids], True
    if isinstance(ids, list) and ids and all(isinstance(i, list) for i in ids):
        return ids, False
    raise BadRequest("Either text, input_ids or input_embeds should be provided.")


def _flush_cache(server: Server) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        try:
            timeout_s = float(http.query_params.get("timeout", "0"))
        except ValueError as error:
            raise BadRequest("timeout must be a number of seconds") from error
        deadline = server.clock.now() + timeout_s
        while server.scheduler.active and server.clock.now() < deadline:
            await asyncio.sleep(0.05)
        if server.scheduler.active:
            message = "Timed out waiting for idle state." if timeout_s > 0 else "Flush cache failed.\n"
            return PlainTextResponse(message, status_code=400)
        server.scheduler.cache.flush()
        logs.line("Cache flushed successfully!", logs.rank_prefix(0, server.plan.ranks))
        return PlainTextResponse(FLUSHED)

    return endpoint


def _abort(server: Server) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        body = await read_json(http)
        for rid, request in list(server.open_requests.items()):
            if body.get("abort_all") or rid == body.get("rid"):
                server.scheduler.abort(request, "Abort in waiting queue" if not request.started else "Aborted")
        return Response(status_code=200)

    return endpoint


def _pause(server: Server, paused: bool) -> Endpoint:
    async def endpoint(http: HttpRequest) -> Response:
        server.paused = paused
        if paused and (await read_json(http)).get("mode", "abort") == "abort":
            for request in list(server.open_requests.values()):
                server.scheduler.abort(request, "Generation paused")
        word = "paused" if paused else "continued"
        return JSONResponse({"message": f"Generation {word} successfully.", "status": "ok"})

    return endpoint
