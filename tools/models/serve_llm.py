"""`ugpu serve-llm model.gguf`: a language model behind OpenAI's HTTP interface.

`GET /v1/models`, `POST /v1/chat/completions` and `POST /v1/completions`, whole or as a stream of
events. Requests are answered one after the other. Wire format: OpenAI's API reference, as its
Python client checks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ugpu.compiler.language.model import LanguageModel, Speed
from ugpu.compiler.language.sampling import Sampling
from ugpu.hcq.errors import BadArgument, MissingDependency, UgpuError
from ugpu.tools.base.console import Output
from ugpu.tools.base.progress import shown

try:
    from aiohttp import web
except ImportError:
    raise MissingDependency(
        "serve-llm needs aiohttp: pip install 'ugpu[page]'", install="pip install 'ugpu[page]'"
    ) from None

BODY = 8 << 20  # bytes of a request
WAITING = 64  # requests that wait for the model
STOPS = 16  # stop sequences of a request


@dataclass(frozen=True)
class ServeOptions:
    """key: what clients must present, or None."""

    device: str | None
    context: int | None
    dtype: str
    host: str
    port: int
    key: str | None


def run(path: str, options: ServeOptions, out: Output) -> int:
    """Serve until interrupted. Return the exit code."""
    with shown(out, f"load {path}"):
        model = LanguageModel(
            path, device=options.device, context=options.context, dtype=options.dtype
        )
    out.say(f"{model.name} on {model.device.name}: http://{options.host}:{options.port}/v1", "bold")
    web.run_app(application(model, options.key), host=options.host, port=options.port, print=None)
    return 0


def application(model: LanguageModel, key: str | None = None) -> web.Application:
    """Return the HTTP application for a model."""
    service = _Service(model, key)
    app = web.Application(client_max_size=BODY, middlewares=[service.guarded])
    app.router.add_get("/v1/models", service.models)
    app.router.add_post("/v1/chat/completions", service.chat)
    app.router.add_post("/v1/completions", service.complete)
    return app


class _Refused(Exception):
    """An answer with an error."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": None}}


@dataclass
class _Request:
    """A checked request. pieces: makes the answer's iterator."""

    chat: bool
    stream: bool
    usage: bool
    stops: list[str]
    pieces: Callable[[Speed], Iterator[str]]


class _Service:
    def __init__(self, model: LanguageModel, key: str | None) -> None:
        self.model = model
        self._key = key
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._started = int(time.time())

    @web.middleware
    async def guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Check the key; turn errors into the format's."""
        try:
            if self._key is not None:
                given = request.headers.get("Authorization", "").removeprefix("Bearer ")
                if not hmac.compare_digest(
                    given.encode("utf-8", "surrogateescape"), self._key.encode()
                ):
                    raise _Refused(401, "incorrect API key", "authentication_error")
            answer: web.StreamResponse = await handler(request)
            return answer
        except _Refused as refused:
            return web.json_response(refused.body, status=refused.status)
        except web.HTTPException as error:
            body = _Refused(error.status, error.reason).body
            return web.json_response(body, status=error.status)

    async def models(self, request: web.Request) -> web.Response:
        """List the one model."""
        entry = {
            "id": self.model.name, "object": "model", "created": self._started, "owned_by": "ugpu",
        }  # fmt: skip
        return web.json_response({"object": "list", "data": [entry]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer messages."""
        body = await self._body(request)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _Refused(400, "messages must be a list of at least one message")
        given = [_message(each) for each in messages]
        try:
            prompt = self.model.prompt(given)
        except UgpuError as error:
            raise _Refused(400, str(error)) from None
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        return await self._answer(request, self._request(body, prompt, limit, True))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Continue a text."""
        body = await self._body(request)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str) or not prompt:
            raise _Refused(400, "prompt must be a text")
        tokens = self.model.tokenizer.encode(prompt)
        return await self._answer(
            request, self._request(body, tokens, body.get("max_tokens", 16), False)
        )

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            body = json.loads((await request.read()).decode("utf-8"))
            json.dumps(body, ensure_ascii=False).encode("utf-8")  # no half of a surrogate pair
        except (ValueError, RecursionError):
            raise _Refused(400, "the body must be JSON") from None
        if not isinstance(body, dict):
            raise _Refused(400, "the body must be a JSON object")
        wanted = body.get("model", self.model.name)
        if wanted != self.model.name:
            raise _Refused(404, f"the model {wanted!r} does not exist; this is {self.model.name!r}")
        if body.get("n", 1) != 1:
            raise _Refused(400, "n must be 1")
        return body

    def _request(self, body: dict[str, Any], prompt: list[int], limit: Any, chat: bool) -> _Request:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise _Refused(400, f"max_tokens must be a positive integer, got {limit!r}")
        room = self.model.decoder.length
        if len(prompt) >= room:
            raise _Refused(400, f"the prompt has {len(prompt)} tokens, the context {room}")
        options = {
            name: body[key]
            for key, name in (("temperature", "temperature"), ("top_p", "top_p"),
                              ("top_k", "top_k"), ("min_p", "min_p"), ("seed", "seed"))
            if body.get(key) is not None
        }  # fmt: skip
        try:
            sampling = Sampling(**options)
            if sampling.seed is not None and (type(sampling.seed) is not int or sampling.seed < 0):
                raise BadArgument(f"seed must be an integer of at least 0, got {sampling.seed!r}")
        except BadArgument as error:
            raise _Refused(400, str(error)) from None
        stops = body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        fits = isinstance(stops, list) and len(stops) <= STOPS
        if not fits or not all(isinstance(stop, str) and stop for stop in stops):
            raise _Refused(400, f"stop must be at most {STOPS} texts")
        extra = body.get("stream_options")
        usage = isinstance(extra, dict) and extra.get("include_usage") is True
        return _Request(
            chat, body.get("stream") is True, usage, stops,
            lambda speed: self.model.generate(prompt, sampling=sampling, limit=limit, speed=speed),
        )  # fmt: skip

    async def _answer(self, request: web.Request, asked: _Request) -> web.StreamResponse:
        if self._waiting >= WAITING:
            raise _Refused(429, f"{WAITING} requests wait already", "rate_limit_error")
        self._waiting += 1
        try:
            async with self._turn:
                if asked.stream:
                    return await self._streamed(request, asked)
                return await self._whole(asked)
        finally:
            self._waiting -= 1

    async def _whole(self, asked: _Request) -> web.Response:
        speed = Speed()
        text = "".join([part async for part in _until(asked, speed)])
        choice: dict[str, Any] = {"index": 0, "finish_reason": speed.reason, "logprobs": None}
        if asked.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        frame = self._frame(asked, "chat.completion" if asked.chat else "text_completion")
        return web.json_response({**frame, "choices": [choice], "usage": _usage(speed)})

    async def _streamed(self, request: web.Request, asked: _Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        frame = self._frame(asked, "chat.completion.chunk" if asked.chat else "text_completion")

        async def send(choices: list[dict[str, Any]], **more: Any) -> None:
            data = json.dumps({**frame, "choices": choices, **more}, ensure_ascii=False)
            await answer.write(f"data: {data}\n\n".encode())

        def piece(text: str, reason: str | None = None, first: bool = False) -> dict[str, Any]:
            choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
            delta = ({"role": "assistant"} if first else {}) | ({"content": text} if text else {})
            return choice | ({"delta": delta} if asked.chat else {"text": text})

        speed = Speed()
        if asked.chat:
            await send([piece("", first=True)])
        async with contextlib.aclosing(_until(asked, speed)) as parts:
            async for part in parts:
                await send([piece(part)])
        await send([piece("", speed.reason)])
        if asked.usage:
            await send([], usage=_usage(speed))
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer

    def _frame(self, asked: _Request, kind: str) -> dict[str, Any]:
        start = "chatcmpl" if asked.chat else "cmpl"
        return {
            "id": f"{start}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()),
            "model": self.model.name,
        }  # fmt: skip


def _message(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise _Refused(400, "a message must be an object with role and content")
    content = given.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        valid = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        content = "".join(map(str, texts)) if valid else None
    if not isinstance(content, str):
        raise _Refused(400, "a message's content must be a text")
    return {"role": given["role"], "content": content}


def _usage(speed: Speed) -> dict[str, int]:
    return {
        "prompt_tokens": speed.prompt_tokens,
        "completion_tokens": speed.tokens,
        "total_tokens": speed.prompt_tokens + speed.tokens,
    }


async def _until(asked: _Request, speed: Speed) -> AsyncGenerator[str, None]:
    """Yield the pieces of an answer up to a stop sequence, computed in a thread. What may be the
    begin of a stop sequence is held back. Ends the thread if the consumer leaves."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
    left = threading.Event()

    def work() -> None:
        end: BaseException | None = None
        try:
            for part in asked.pieces(speed):
                if left.is_set():
                    break
                loop.call_soon_threadsafe(queue.put_nowait, part)
        except BaseException as error:  # raised again by the consumer
            end = error
        loop.call_soon_threadsafe(queue.put_nowait, end)

    task = loop.run_in_executor(None, work)
    held = ""
    longest = max(map(len, asked.stops), default=1) - 1
    try:
        while (part := await queue.get()) is not None:
            if isinstance(part, BaseException):
                raise _Refused(500, str(part), "server_error") from part
            held += part
            places = [place for stop in asked.stops if (place := held.find(stop)) >= 0]
            if places:
                held = held[: min(places)]
                speed.reason = "stop"
                break
            ready = len(held) - longest
            if ready > 0:
                yield held[:ready]
                held = held[ready:]
        if held:
            yield held
    finally:
        left.set()
        await asyncio.shield(task)
