"""A server of completions on loopback, around a real engine, which can be made to misbehave in every way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import draftproof as dp
from draftproof.errors import DraftproofError

Json = dict[str, Any]


@dataclass
class Served:
    """A server's engine, manners and memory.

    Attributes:
        engine: what answers.
        style: "vllm" (ids beside texts), "llamacpp" (ids in the list of tokens), "plain" (texts only).
        spoil: changes a request before the engine sees it.
        twist: changes the answer to a request before it is sent.
        behave: called before each completion with its number; may raise `Rude` or sleep.
        seen: the requests.
    """

    engine: dp.Engine
    style: str = "vllm"
    name: str = "toy"
    key: str | None = None
    most_logprobs: int = 20
    spoil: Callable[[Json], Json] = lambda body: body
    twist: Callable[[Json, Json], Json] = lambda body, answer: answer
    behave: Callable[[int], None] = lambda number: None
    seen: list[tuple[str, Json]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def answer(self, path: str, body: Json) -> Json:
        model = self.engine.target
        if path == "/v1/models":
            return {"data": [{"id": self.name}]}
        if path == "/tokenize" and self.style != "plain":
            return {"tokens": [int(token) for token in model.tokenizer.encode(body["prompt"])]}
        if path != "/v1/completions":
            raise Rude(404, {"error": {"message": "no such place"}})
        body = self.spoil(dict(body))
        if body.get("model") != self.name:
            raise Rude(404, {"error": {"message": f"The model `{body.get('model')}` does not exist."}})
        if (body.get("logprobs") or 0) > self.most_logprobs:
            raise Rude(400, {"error": {"message": f"at most {self.most_logprobs} logprobs"}})
        with self.lock:
            number = sum(where == path for where, _ in self.seen)
        self.behave(number)
        bias = {int(token): value for token, value in body.get("logit_bias", {}).items()}
        names = (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        law = dp.Sampler(logit_bias=bias, **{name: body[name] for name in names if name in body})
        done = self.engine.generate(
            body["prompt"],
            max_tokens=body.get("max_tokens", 16),
            sampler=law,
            seed=body.get("seed", number),
            stop=body.get("stop", ()),
            logprobs=body.get("logprobs"),
        )
        return self.twist(body, self._told(body, done))

    def _told(self, body: Json, done: dp.Completion) -> Json:
        text_of = self.engine.target.tokenizer.token_name
        choice: Json = {"text": done.text, "finish_reason": done.finish_reason, "logprobs": None}
        usage = {"prompt_tokens": done.usage.prompt_tokens, "completion_tokens": done.usage.completion_tokens}
        told: Json = {"object": "text_completion", "choices": [choice], "usage": usage}
        as_ids = self.style == "vllm" and body.get("return_tokens_as_token_ids")

        def name(token: int) -> str:
            return f"token_id:{token}" if as_ids else text_of(token)

        if done.logprobs is not None and self.style == "llamacpp":
            choice["logprobs"] = {
                "content": [
                    {
                        "id": each.token,
                        "token": text_of(each.token),
                        "logprob": each.logprob,
                        "top_logprobs": [{"id": t, "token": text_of(t), "logprob": value} for t, value in each.top],
                    }
                    for each in done.logprobs
                ]
            }
            told["timings"] = {
                "draft_n": done.counts.num_draft_tokens,
                "draft_n_accepted": done.counts.num_accepted_tokens,
            }
        elif done.logprobs is not None:
            choice["logprobs"] = {
                "tokens": [name(each.token) for each in done.logprobs],
                "token_logprobs": [each.logprob for each in done.logprobs],
                # Like vLLM: the token itself is listed even if it is not among the likeliest.
                "top_logprobs": [
                    {name(t): value for t, value in each.top} | {name(each.token): each.logprob}
                    for each in done.logprobs
                ],
            }
        if self.style == "vllm" and body.get("return_token_ids"):
            choice["token_ids"] = done.tokens
        return told


class Rude(Exception):
    """An answer that is none.

    Args:
        status: of HTTP.
        body: JSON, or bytes as they are.
        headers: more of them.
    """

    def __init__(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = {"Content-Type": "text/html" if isinstance(body, bytes) else "application/json"} | (
            headers or {}
        )


class Hangup(Exception):
    """The connection is closed without an answer."""


class Trickle(Exception):
    """An answer that comes byte by byte and never ends."""


@contextmanager
def serving(served: Served) -> Iterator[Served]:
    """Serves on a free port of loopback until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._handle({})

        def do_POST(self) -> None:
            self._handle(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _handle(self, body: Json) -> None:
            try:
                if served.key is not None and self.headers.get("Authorization") != f"Bearer {served.key}":
                    raise Rude(401, {"error": {"message": "invalid api key"}})
                status, headers = 200, {"Content-Type": "application/json"}
                content = json.dumps(served.answer(self.path, body)).encode()
            except Rude as rude:
                status, content, headers = rude.status, rude.content, rude.headers
            except DraftproofError as error:
                status, content, headers = 400, json.dumps({"error": {"message": str(error)}}).encode(), {}
            except Hangup:
                self.close_connection = True
                return
            except Trickle:
                self.send_response(200)
                self.end_headers()
                try:
                    while not stopped.is_set():
                        self.wfile.write(b" ")
                        self.wfile.flush()
                        time.sleep(0.02)
                except OSError:
                    pass
                self.close_connection = True
                return
            finally:
                with served.lock:
                    served.seen.append((self.path, body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                self.wfile.write(content)
                self.wfile.flush()
            except OSError:
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that leaves is no error of the server

    stopped = threading.Event()
    server = Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
