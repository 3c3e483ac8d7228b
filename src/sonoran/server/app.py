"""The ASGI application: routes, the gate before them, and requests that end when their client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from importlib.resources import files
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Match, Route, Router

import sonoran
from sonoran.errors import SonoranError, nearest
from sonoran.server.bodies import Writer
from sonoran.server.errors import ApiError, as_api_error, bad, unavailable
from sonoran.server.protocol import REQUEST_ID, Kind, Reader, read_job, read_json
from sonoran.server.responses import ResponseWriter, read_response
from sonoran.server.service import Service, within
from sonoran.types import RoundEvent

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

STATUS_PAUSE_S = 0.1
READ_ON = 8
"""Times the limit that is read, and dropped, of a body that is too long, before its client is told."""

PAGE_FILES = {"index.html": "text/html", "app.js": "text/javascript", "style.css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
OPEN_PATHS = frozenset({"/", "/health", "/ping", "/version", *(f"/ui/{name}" for name in PAGE_FILES)})
"""What needs no key."""


class ClientGoneError(Exception):
    """Nobody is there to answer."""


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")


def error_response(error: ApiError) -> Response:
    """Return the answer that an error is."""
    return json_response(error.body, error.status, error.headers)


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """Return the body of a request. Raises ApiError when it is too long, or no JSON by its own account."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415, f"the content type must be application/json, got {kind[:80]!r}", "unsupported_media_type"
        )
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size <= limit:
            parts.append(part)
        elif size > READ_ON * limit:
            break
    if size > limit:
        # Most clients read an answer only once they have written everything.
        raise ApiError(413, f"the body is longer than {limit} bytes", "request_too_large")
    return b"".join(parts)


async def while_connected(receive: Receive, work: Awaitable[None]) -> None:
    """Do something until the client leaves, which cancels it."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (doing, leaving):
            if not task.done():
                task.cancel()
        results = await asyncio.gather(doing, leaving, return_exceptions=True)
    if isinstance(results[0], BaseException) and not isinstance(results[0], asyncio.CancelledError):
        raise results[0]


class Generation:
    """``POST`` of one kind of request."""

    def __init__(self, service: Service, kind: Kind) -> None:
        self._service, self._kind = service, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        service = self._service
        if service.draining:
            raise unavailable("the server is shutting down", "shutting_down")
        body = await read_body(receive, HttpRequest(scope).headers, service.config.max_body)
        try:
            document = read_json(body)
            job = read_response(document) if self._kind == "response" else read_job(self._kind, document)
        except SonoranError as error:
            raise as_api_error(error) from None
        entry = service.admit(job, scope["sonoran.key"], scope["sonoran.id"])

        async def work() -> None:
            await service.prepare(entry)
            responses = job.kind == "response"
            writer = ResponseWriter(service, entry, document) if responses else Writer(service, entry)
            if job.stream:
                await self._stream(Events(send, service.config.stall_timeout), writer, entry)
                return
            async with aclosing(service.run(entry)) as news:  # type: ignore[type-var]
                async for prompt, delta in news:
                    writer.take(prompt, delta)
            await json_response(writer.whole())(scope, receive, send)

        try:
            await while_connected(receive, work())
        finally:
            service.leave(entry)

    async def _stream(self, events: Events, writer: Writer | ResponseWriter, entry: Any) -> None:
        alive = asyncio.create_task(events.keep_alive(self._service.config.keep_alive))
        try:
            async with aclosing(self._service.run(entry)) as news:  # type: ignore[type-var]
                async for prompt, delta in news:
                    for chunk in writer.chunks(prompt, delta):
                        await events.send(chunk)
            if isinstance(writer, Writer) and writer.job.include_usage:
                await events.send(writer.last_chunk())
        except ApiError as error:
            if not events.begun:
                raise
            await events.send(writer.error(error))
        finally:
            alive.cancel()
        await events.end()


class Events:
    """Server-sent events. The answer begins with the first of them, so that what fails before has a status."""

    def __init__(self, send: Send, stall_s: float) -> None:
        self._send, self._stall_s = send, stall_s
        self._lock = asyncio.Lock()
        self._news = 0
        self.begun = False

    async def send(self, value: Any) -> None:
        """Send one event. Raises ClientGoneError when the client has read nothing for long."""
        self._news += 1
        named = b"event: " + value["type"].encode() + b"\n" if "type" in value else b""
        await self._write(named + b"data: " + msgspec.json.encode(value) + b"\n\n")

    async def end(self) -> None:
        """Send the last event and end the answer."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def keep_alive(self, pause_s: float) -> None:
        """Send a comment whenever nothing was sent for some time."""
        while True:
            before = self._news
            await asyncio.sleep(pause_s)
            if self._news == before:
                await self._write(b": keep-alive\n\n")

    async def _write(self, data: bytes, more: bool = True) -> None:
        async with self._lock:
            if not self.begun:
                self.begun = True
                headers = [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no"),
                ]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            body = {"type": "http.response.body", "body": data, "more_body": more}
            try:
                await within(self._stall_s, self._send(body))
            except asyncio.TimeoutError:
                raise ClientGoneError from None


class Pages:
    """Everything that is no generation."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, request: HttpRequest) -> Response:
        """Say that the server serves."""
        service = self._service
        if service.draining:
            raise unavailable("the server is shutting down", "shutting_down")
        if not service.healthy:
            raise unavailable("the engine does not answer", "engine_error")
        return Response(b"", 200)

    async def version(self, request: HttpRequest) -> Response:
        """Say which program this is."""
        return json_response({"version": sonoran.__version__})

    async def metrics(self, request: HttpRequest) -> Response:
        """Return the metrics in Prometheus' format."""
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, request: HttpRequest) -> Response:
        """List the names of the model."""
        return json_response({"object": "list", "data": [self._card(n) for n in self._service.config.names]})

    async def model(self, request: HttpRequest) -> Response:
        """Describe the model under one name."""
        name = request.path_params["name"]
        if name not in self._service.config.names:
            raise ApiError(404, f"the model {name!r:.80} does not exist", "model_not_found", "model")
        return json_response(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        service = self._service
        facts = {k: v for k, v in service.facts.items() if k in ("draft", "mode", "quantize")}
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "sonoran",
            "root": str(service.facts.get("model", service.config.names[0])),
            "parent": None,
            "max_model_len": service.llm.max_model_len,
            "permission": [],
            "meta": {**facts, "num_speculative_tokens": service.llm.num_speculative_tokens},
        }

    async def tokenize(self, request: HttpRequest) -> Response:
        """Turn a text or a chat into token ids."""
        body = read_json(await read_body(request.receive, request.headers, self._service.config.max_body))
        known = (
            "model",
            "prompt",
            "messages",
            "add_special_tokens",
            "return_token_strs",
            "add_generation_prompt",
        )
        reader, llm = Reader(body, known), self._service.llm
        messages, prompt = reader.values.get("messages"), reader.text("prompt")
        if (messages is None) == (prompt is None):
            raise bad("give prompt or messages, one of them", "prompt")
        if prompt is not None:
            special = reader.flag("add_special_tokens", True)
            ids = await asyncio.to_thread(llm.tokenizer.encode, prompt, add_special_tokens=special)
        elif not isinstance(messages, list):
            raise bad("messages must be a list of messages", "messages")
        else:
            generation = reader.flag("add_generation_prompt", True)
            ids = await asyncio.to_thread(
                llm.tokenizer.encode_chat, messages, add_generation_prompt=generation
            )
        found = {"count": len(ids), "max_model_len": llm.max_model_len, "tokens": ids}
        if reader.flag("return_token_strs"):
            found["token_strs"] = [llm.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
        return json_response(found)

    async def detokenize(self, request: HttpRequest) -> Response:
        """Turn token ids into a text."""
        body = read_json(await read_body(request.receive, request.headers, self._service.config.max_body))
        reader, llm = Reader(body, ("model", "tokens")), self._service.llm
        ids = reader.values.get("tokens")
        if not isinstance(ids, list) or any(type(i) is not int or not 0 <= i < 2**31 for i in ids):
            raise bad("tokens must be a list of token ids", "tokens")
        return json_response({"prompt": llm.tokenizer.decode(ids, skip_special_tokens=False)})

    async def tokenizer_info(self, request: HttpRequest) -> Response:
        """Name the special tokens."""
        tokenizer = self._service.llm.tokenizer
        names, bos = tokenizer.token_strings(), tokenizer.bos_id
        return json_response(
            {
                "bos_token": None if bos is None else names[bos],
                "eos_token": names[tokenizer.eos_ids[-1]] if tokenizer.eos_ids else None,
                "eos_token_ids": list(tokenizer.eos_ids),
                "add_bos_token": tokenizer.adds_bos,
                "vocab_size": tokenizer.vocab_size,
                "has_chat_template": tokenizer.has_chat_template,
                "fingerprint": tokenizer.fingerprint(),
            }
        )

    async def status(self, request: HttpRequest) -> Response:
        """Return what runs now."""
        return json_response(self._service.status())

    async def cancel(self, request: HttpRequest) -> Response:
        """End a request."""
        name = request.path_params["name"]
        if not self._service.cancel(name, request.scope["sonoran.key"]):
            raise ApiError(404, f"no request {name!r:.80} is being served", "request_not_found")
        return json_response({"id": name, "object": "request.cancelled", "cancelled": True})

    async def page(self, request: HttpRequest) -> Response:
        """Return a file of the page."""
        name = request.path_params.get("name", "index.html")
        if name not in PAGE_FILES or not self._service.config.page:
            raise ApiError(404, "there is no such page", "not_found")
        content = (files("sonoran.server") / "web" / name).read_bytes()
        headers = {
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        return Response(content, 200, headers, PAGE_FILES[name])


class StatusStream:
    """What happens, ten times a second: rounds, and every second the status."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client leaves or the server ends."""
        service, events = self._service, Events(send, self._service.config.stall_timeout)

        async def work() -> None:
            last, beat = service.rounds[-1][0] if service.rounds else 0, 0
            while not service.draining:
                rounds = service.rounds_after(last)
                document: dict[str, Any] = {"rounds": [plain_round(event) for _, event in rounds]}
                if rounds:
                    last = rounds[-1][0]
                if beat % 10 == 0:
                    document["status"] = service.status()
                if rounds or beat % 10 == 0:
                    await events.send(document)
                beat += 1
                await asyncio.sleep(STATUS_PAUSE_S)
            await events.end()

        await while_connected(receive, work())


def plain_round(event: RoundEvent) -> dict[str, Any]:
    """Return a round as spectators see it; no text is in it. Times are in milliseconds."""
    return {
        "t": [
            round(1e3 * s, 2)
            for s in (event.begin_s, event.drafted_s, event.packed_s, event.ran_s, event.end_s)
        ],
        "rows": event.num_rows,
        "hidden": None if event.hidden_s is None else round(1e3 * event.hidden_s, 2),
        "exposed": None if event.exposed_s is None else round(1e3 * event.exposed_s, 2),
        "samples": [
            {
                "id": sample.request_id,
                "proposed": len(sample.proposed),
                "accepted": sample.accepted,
                "emitted": len(sample.emitted),
                "origin": sample.origin,
                "prompt": sample.num_prompt_tokens,
            }
            for sample in event.samples
        ],
    }


class Gate:
    """What every request passes: who it is from, whether it may, what it is called, and what it ends with."""

    def __init__(self, service: Service, routes: list[Route]) -> None:
        self._service, self._routes = service, routes
        self._router = Router(routes, redirect_slashes=False)
        config = service.config
        hosts = {config.host, "localhost", "127.0.0.1", "[::1]", "::1"}
        self._origins = {origin.rstrip("/").lower() for origin in config.cors_origins}
        self._hosts = hosts | {origin.partition("://")[2] for origin in self._origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what uvicorn hands over."""
        if scope["type"] != "http":
            return
        headers = HttpRequest(scope).headers
        given = headers.get("x-request-id", "")
        name = given if REQUEST_ID.fullmatch(given) else None
        scope["sonoran.id"], scope["sonoran.key"] = name, None
        scope["app"] = self  # so that Starlette raises what is missing
        shown, origin, begun, code = name or uuid.uuid4().hex, headers.get("origin", ""), False, 0
        allowed = origin.lower() in self._origins or ("*" in self._origins and origin)

        async def answer(message: Message) -> None:
            nonlocal begun, code
            if message["type"] == "http.response.start":
                begun, code = True, message["status"]
                more = [(b"x-request-id", shown.encode())]
                if allowed:
                    more += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            try:
                if allowed and scope["method"] == "OPTIONS":
                    await preflight()(scope, receive, answer)
                    return
                self._check(scope, headers, origin, bool(allowed))
                await self._router(scope, receive, answer)
            except HTTPException as error:
                raise self._missing(scope, error) from None
        except ClientGoneError:
            return
        except ApiError as error:
            if not begun:
                await error_response(error)(scope, receive, answer)
        except SonoranError as error:
            if not begun:
                await error_response(as_api_error(error))(scope, receive, answer)
        except Exception:
            log.exception("a request failed")
            if not begun:
                failed = ApiError(500, "the server failed; its log says more", "internal_error")
                with contextlib.suppress(Exception):
                    await error_response(failed)(scope, receive, answer)
        finally:
            self._service.metrics.answered(self._route(scope), code)

    def _route(self, scope: Scope) -> str:
        route = scope.get("route")
        if isinstance(route, Route):
            return route.path
        for candidate in self._routes:
            if candidate.matches(scope)[0] != Match.NONE:
                return candidate.path
        return "other"

    def _check(self, scope: Scope, headers: Mapping[str, str], origin: str, allowed: bool) -> None:
        """Raise ApiError for who may not come in."""
        config, host = self._service.config, headers.get("host", "").lower()
        bare = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if config.is_loopback and not config.keys and not {host, bare} & self._hosts:
            # A page of anywhere whose name was made to point here must not use the server.
            raise ApiError(403, f"the host {host[:80]!r} is not this server's", "forbidden")
        if origin and not allowed and origin.partition("://")[2].lower() != host:
            raise ApiError(
                403, f"pages of {origin[:80]!r} may not use this server (--cors-origin)", "forbidden"
            )
        if (
            not config.keys
            or scope["path"] in OPEN_PATHS
            or (scope["path"] == "/metrics" and config.is_loopback)
        ):
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        # Every key is compared, so that the time does not tell which one was nearly right.
        known = [k for k in config.keys if hmac.compare_digest(k.encode(), key.encode("utf-8", "replace"))]
        if not known:
            text = "the key is wrong" if key else "a key is needed: Authorization: Bearer KEY"
            raise ApiError(401, text, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        scope["sonoran.key"] = known[0]

    def _missing(self, scope: Scope, error: HTTPException) -> ApiError:
        path = scope["path"]
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            text = f"{path[:80]} takes {allowed}, not {scope['method'][:20]}"
            return ApiError(405, text, "method_not_allowed", headers=error.headers)
        paths = sorted({route.path for route in self._routes if "{" not in route.path})
        return ApiError(404, f"there is no {path[:80]!r}{nearest(path, paths)}", "not_found")


def preflight() -> Response:
    """Return the answer to a browser that asks whether a page of an allowed origin may ask."""
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": "authorization, content-type, x-api-key, x-request-id",
            "Access-Control-Max-Age": "600",
        },
    )


def build_app(service: Service) -> Gate:
    """Return the application over a service."""
    pages = Pages(service)
    generations: list[tuple[str, Kind]] = [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completion"),
        ("/v1/responses", "response"),
    ]
    routes = [Route(path, Generation(service, kind), methods=["POST"]) for path, kind in generations]
    for prefix in ("", "/v1"):
        routes += [
            Route(f"{prefix}/tokenize", pages.tokenize, methods=["POST"]),
            Route(f"{prefix}/detokenize", pages.detokenize, methods=["POST"]),
            Route(f"{prefix}/tokenizer_info", pages.tokenizer_info),
        ]
    routes += [
        Route("/v1/models", pages.models),
        Route("/v1/models/{name:path}", pages.model),
        Route("/v1/status", pages.status),
        Route("/v1/status/stream", StatusStream(service), methods=["GET"]),
        Route("/v1/requests/{name}", pages.cancel, methods=["DELETE"]),
        Route("/health", pages.health),
        Route("/ping", pages.health),
        Route("/version", pages.version),
        Route("/metrics", pages.metrics),
        Route("/", pages.page),
        Route("/ui/{name}", pages.page),
    ]
    return Gate(service, routes)
