"""The OpenAI-style endpoints: models, completions, chat completions, and their streams.

Source: completion.json, chat.json; SGLang 0.5.23 srt/entrypoints/openai/serving_{completions,chat}.py for streams.
"""

import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from . import info, text
from .requests import Request
from .server import BadRequest, Server

CHAT_DEFAULT_TOKENS = 256
COMPLETION_DEFAULT_TOKENS = 16


def routes(server: Server) -> list[Route]:
    return [
        Route("/v1/models", _models(server)),
        Route("/v1/models/{model:path}", _model(server)),
        Route("/v1/completions", _complete(server, chat=False), methods=["POST"]),
        Route("/v1/chat/completions", _complete(server, chat=True), methods=["POST"]),
    ]


def _models(server: Server) -> Any:
    async def endpoint(http: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [info.model_card(server)]})

    return endpoint


def _model(server: Server) -> Any:
    async def endpoint(http: HttpRequest) -> Response:
        model = http.path_params["model"]
        if model != server.plan.arguments["served_model_name"]:
            return JSONResponse(
                {
                    "error": {
                        "message": f"The model '{model}' does not exist",
                        "type": "invalid_request_error",
                        "param": "model",
                        "code": "model_not_found",
                    }
                },
                status_code=404,
            )
        return JSONResponse(info.model_card(server))

    return endpoint


def _complete(server: Server, chat: bool) -> Any:
    async def endpoint(http: HttpRequest) -> Response:
        if "application/json" not in http.headers.get("content-type", ""):
            raise BadRequest("Unsupported Media Type: Only 'application/json' is allowed")
        try:
            body = json.loads(await http.body())
        except ValueError as error:
            raise BadRequest(f"Invalid JSON body: {error}") from error
        if not isinstance(body, dict):
            raise BadRequest("Request body must be a JSON object.")
        prompt = chat_prompt(body) if chat else completion_prompt(body)
        request = server.new_request(_native_body(body, chat), prompt)
        server.submit(request, http.scope["arrived_at"])
        if body.get("stream"):
            return StreamingResponse(_stream(server, request, http, body, chat), media_type="text/event-stream")
        await server.finish(request, http)
        return JSONResponse(_body(server, request, body, chat))

    return endpoint


def chat_prompt(body: Mapping[str, Any]) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: Field required and must not be empty")
    lines: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise BadRequest("messages: each message needs a role")
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "<image>")) for part in content if isinstance(part, dict))
        lines.append(f"{message['role']}: {content}\n")
    return text.tokenize("".join(lines) + "assistant:")


def completion_prompt(body: Mapping[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return text.tokenize(prompt) or [0]
    if isinstance(prompt, list) and prompt and all(isinstance(i, int) for i in prompt):
        return prompt
    raise BadRequest("prompt: must be a text or a list of token ids")


def _native_body(body: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is None:
        limit = CHAT_DEFAULT_TOKENS if chat else COMPLETION_DEFAULT_TOKENS
    return {
        "stream": body.get("stream", False),
        "rid": body.get("rid"),
        "sampling_params": {
            "max_new_tokens": limit,
            "temperature": body.get("temperature"),
            "stop": body.get("stop"),
        },
    }


def usage(server: Server, request: Request) -> dict[str, Any]:
    tokens = request.visible()
    report = server.plan.arguments["enable_cache_report"]
    return {
        "prompt_tokens": len(request.prompt),
        "total_tokens": len(request.prompt) + tokens,
        "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": request.cached} if report else None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def _finish(request: Request) -> tuple[str | None, str | None]:
    reason = info.finish_reason(request)
    return (None, None) if reason is None else (reason["type"], reason.get("matched"))


def _body(server: Server, request: Request, body: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    written = request.text(request.visible())
    kind, matched = _finish(request)
    end: dict[str, Any] = {"logprobs": None, "finish_reason": kind, "matched_stop": matched}
    if chat:
        message = {"role": "assistant", "content": written, "reasoning_content": None}
        choice: dict[str, Any] = {"index": 0, "message": message, **end}
    else:
        choice = {"index": 0, "text": written, **end}
    version = server.plan.arguments["weight_version"]
    versions = [{"version": version, "start": 0, "end": request.visible()}]
    return {
        "id": request.rid,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(request.received),
        "model": _model_name(server, body),
        "choices": [choice],
        "usage": usage(server, request),
        "metadata": {"weight_version": version, "weight_versions": versions},
    }


def _model_name(server: Server, body: Mapping[str, Any]) -> str:
    return str(body.get("model") or server.plan.arguments["served_model_name"])


async def _stream(
    server: Server, request: Request, http: HttpRequest, body: Mapping[str, Any], chat: bool
) -> AsyncIterator[bytes]:
    """Yield what is new since the last chunk: several tokens at once under speculation."""
    sent = 0
    created = int(time.time())
    first = chat

    def chunk(choice: list[dict[str, Any]], with_usage: bool = False) -> bytes:
        content = {
            "id": request.rid,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": _model_name(server, body),
            "choices": choice,
            "usage": usage(server, request) if with_usage else None,
        }
        return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"

    async for state in server.follow(request, http):
        tokens = state.visible()
        if first and tokens:
            first = False
            yield chunk([_delta("", chat, role="assistant")])
        new = "".join(state.pieces[sent:tokens])
        if tokens > sent:
            sent = tokens
            yield chunk([_delta(new, chat)])
        if state.done and state.cut:
            return
    kind, matched = _finish(request)
    yield chunk([_delta(None if chat else "", chat, finish=kind, matched=matched)])
    options = body.get("stream_options") or {}
    if options.get("include_usage") or server.plan.arguments["stream_response_default_include_usage"]:
        yield chunk([], with_usage=True)
    yield b"data: [DONE]\n\n"


def _delta(
    content: str | None, chat: bool, *, role: str | None = None, finish: str | None = None, matched: str | None = None
) -> dict[str, Any]:
    end = {"logprobs": None, "finish_reason": finish, "matched_stop": matched}
    if not chat:
        return {"index": 0, "text": content, **end}
    delta = {"role": role, "content": content, "reasoning_content": None, "tool_calls": None}
    return {"index": 0, "delta": delta, **end}
