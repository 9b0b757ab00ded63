"""A client of OpenAI-compatible completions, which says exactly what was asked and never sends it anywhere else."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from draftproof.audit.endpoint.answers import Answer, listed, parsed, sendable
from draftproof.errors import EndpointError, MissingDependencyError, RefusedRequestError, UsageError
from draftproof.sampling import Sampler

if TYPE_CHECKING:
    import httpx2

Prompt: TypeAlias = str | Sequence[int]

T = TypeVar("T")

PAUSE, LONGEST_PAUSE = 0.25, 10.0
"""Seconds before a request is tried again: doubled each time, or what the server asks for, up to the second."""

LARGEST_ANSWER = 64 * 2**20

NEUTRAL: dict[str, Any] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling parameters that servers may set otherwise if they are not told; `repeat_penalty` is llama.cpp's name."""

TELLING: dict[str, Any] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
"""What asks vLLM for token ids; others do not know it and most leave it alone."""


@dataclass(eq=False)
class Endpoint:
    """An OpenAI-compatible server.

    Args:
        url: the API's root, such as `http://127.0.0.1:8000/v1`.
        model: the name to ask for; None: the only one that is served.
        api_key: sent as a bearer token, to this URL only.
        timeout: seconds for a whole answer.
        retries: how often a request that failed for want of an answer is sent again.
        called: what errors call the URL.
    """

    url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    retries: int = 2
    called: str = "url"
    logprobs: int = 0
    leave_out: frozenset[str] = frozenset()
    stopped: bool = False

    def __post_init__(self) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise MissingDependencyError(
                "audits of endpoints need httpx2; pip install 'draftproof[endpoint]'"
            ) from error
        try:
            parsed = httpx2.URL(self.url)
        except (httpx2.InvalidURL, TypeError, UnicodeError) as error:
            raise UsageError(f"{self.called} {self.url!r} is no URL ({error}); use for example {_EXAMPLE}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"{self.called} {self.url!r} is no address of a server; use for example {_EXAMPLE}")
        if parsed.userinfo or parsed.query or parsed.fragment:
            raise UsageError(f"{self.called} holds more than an address; give a password as the key instead")
        self.api_key = None if self.api_key is None else self.api_key.strip()
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise UsageError(f"the key for {self.called} is empty or has characters that no header can carry; check it")
        self.url = self.url.rstrip("/")
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        # Neither proxies and passwords of the environment nor redirects: nothing goes to any other host.
        self._http = httpx2.Client(headers=headers, timeout=self.timeout, follow_redirects=False, trust_env=False)

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    # What is there

    def greet(self, logprobs: int) -> None:
        """Finds out which model is served and what of a request is understood.

        Args:
            logprobs: the number of likeliest tokens to ask for; fewer if the server refuses as many.

        Raises:
            UsageError: if the URL, the key or the model's name is wrong.
            EndpointError: if the server fails or gives no answer.
        """
        models = self.call("GET", "/models")
        names = [sendable(str(each.get("id"))) for each in listed(models.get("data")) if isinstance(each, dict)]
        if self.model is None:
            if len(names) != 1:
                raise UsageError(f"{self.named} serves {', '.join(names) or 'no model'}; give model, one of them")
            self.model = names[0]
        elif names and self.model not in names:
            raise UsageError(f"model {self.model!r} is not served by {self.named}; it has: {', '.join(names)}")
        for counted in dict.fromkeys((logprobs, 20, 10, 5, 1, 0)):
            if counted > logprobs:
                continue
            self.logprobs = counted
            for missing in (frozenset[str](), frozenset(TELLING), frozenset(TELLING) | frozenset(NEUTRAL)):
                self.leave_out = missing
                try:
                    answer = self.complete("a", 2, Sampler(temperature=0.0), 0)
                except RefusedRequestError as error:
                    refusal = error
                    continue
                # Where nothing was written, nothing is known yet.
                if answer.text and (answer.tokens == () or answer.tokens[0].top is None):
                    self.logprobs = 0
                return
        raise UsageError(f"{self.named} refuses the plainest completion: {refusal.told}")

    @property
    def named(self) -> str:
        """What errors call the server."""
        return f"{self.called} {self.url}"

    def tokenize(self, text: str) -> list[int] | None:
        """Returns a prompt's ids as vLLM and llama.cpp tell them; None if the server does not."""
        body = {"model": self.model, "prompt": text, "content": text, "add_special": True}
        with contextlib.suppress(EndpointError, UsageError):
            found = self.call("POST", "/tokenize", body, root=True).get("tokens")
            if isinstance(found, list) and found and all(isinstance(each, int) and 0 <= each < 2**31 for each in found):
                return found
        return None

    # Asking

    def complete(
        self,
        prompt: Prompt,
        max_tokens: int,
        sampler: Sampler,
        seed: int | None = None,
        stop: Sequence[str] = (),
        **more: Any,
    ) -> Answer:
        """Returns a completion.

        Args:
            prompt: text or ids.
            max_tokens: most new tokens.
            sampler: temperature, top-k, top-p, min-p, penalties and bias.
            seed: of the server's randomness.
            stop: strings that end it.
            more: further fields of the request.

        Raises:
            RefusedRequestError: if the server refuses the request as it is.
            UsageError: if the URL, the key or the model is wrong.
            EndpointError: if the server fails or gives no answer.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else [int(each) for each in prompt],
            "max_tokens": max_tokens,
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "stream": False,
        }
        for name, neutral in NEUTRAL.items():
            value = getattr(sampler, "repetition_penalty" if name == "repeat_penalty" else name)
            if value != neutral or name not in self.leave_out:
                body[name] = value
        if sampler.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampler.logit_bias.items()}
        if seed is not None:
            body["seed"] = seed
        if stop:
            body["stop"] = list(stop)
        if self.logprobs:
            body["logprobs"] = self.logprobs
        body |= {name: value for name, value in TELLING.items() if name not in self.leave_out}
        return parsed(self.call("POST", "/completions", body | more), self.logprobs, self.named)

    def call(self, method: str, path: str, body: Any = None, root: bool = False) -> dict[str, Any]:
        """Returns the JSON object that a request gives, after as many tries as are allowed.

        Args:
            method: GET or POST.
            path: below the URL.
            body: to be sent as JSON.
            root: leave out the URL's own last part, `/v1`.
        """
        where = (self.url.removesuffix("/v1") if root else self.url) + path
        for tried in range(self.retries + 1):
            if self.stopped:
                raise EndpointError(f"{self.named} was not asked any more: the audit has ended")
            try:
                return self._once(method, where, body)
            except _AgainError as error:
                if tried == self.retries:
                    times = f", tried {tried + 1} times" if tried else ""
                    raise EndpointError(f"{self.named} {error}{times}") from None
                time.sleep(min(max(error.pause, PAUSE * 2**tried), LONGEST_PAUSE))
        raise AssertionError("unreachable")

    def _once(self, method: str, where: str, body: Any) -> dict[str, Any]:
        import httpx2

        deadline = time.monotonic() + self.timeout
        try:
            with self._http.stream(method, where, json=body) as response:
                chunks, size = [], 0
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    size += len(chunk)
                    # A timeout of the transport's starts anew with each byte; an answer has one for all.
                    if time.monotonic() > deadline:
                        raise _AgainError(f"did not finish its answer within {self.timeout:g} s; {_SLOW}")
                    if size > LARGEST_ANSWER:
                        raise EndpointError(f"{self.named} sends more than {LARGEST_ANSWER} bytes for one answer")
        except UnicodeError as error:
            raise UsageError(f"{self.named} has no host that can be asked for ({error}); check it") from None
        except httpx2.TimeoutException:
            raise _AgainError(f"gave no answer within {self.timeout:g} s; {_SLOW}") from None
        except httpx2.ConnectError as error:
            raise _AgainError(f"cannot be reached ({error}); start the server, or check host and port") from None
        except httpx2.RequestError as error:
            raise _AgainError(f"broke the connection off ({error or type(error).__name__}); see its log") from None
        return self._understood(response, b"".join(chunks))

    def _understood(self, response: httpx2.Response, content: bytes) -> dict[str, Any]:
        status, text = response.status_code, content.decode(errors="replace")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        told = sendable(_message(found) or " ".join(text.split())[:200] or "nothing")
        if self.api_key:
            told = told.replace(self.api_key, "(the key)")
        if status in (401, 403):
            raise UsageError(f"{self.named} refuses {'the key' if self.api_key else 'to answer without a key'}: {told}")
        if 300 <= status < 400:
            to = response.headers.get("location", "nowhere")
            raise UsageError(f"{self.named} redirects to {to}, which is not followed; give that URL if it is meant")
        if status == 429 or (status >= 500 and status != 501):
            asked = response.headers.get("retry-after", "")
            raise _AgainError(f"answers {status}: {told}", float(asked) if asked.isdecimal() else 0.0)
        if status == 404:
            raise UsageError(f"{self.named} answers 404 to {response.request.url.path}: {told}; {_ROOT}")
        if status >= 400:
            raise RefusedRequestError(f"{self.named} refuses a request ({status}): {told}", told)
        if not isinstance(found, dict):
            kind = response.headers.get("content-type", "something").split(";")[0]
            raise UsageError(f"{self.named} answers {kind} instead of a JSON object ({told[:60]!r}); {_ROOT}")
        if "error" in found and "choices" not in found and "data" not in found:
            raise RefusedRequestError(f"{self.named} refuses a request: {told}", told)
        return found


_EXAMPLE = "http://127.0.0.1:8000/v1"
_SLOW = "raise timeout, or see its log"
_ROOT = "give the API's root, which usually ends in /v1"


class _AgainError(Exception):
    """A failure that another try may mend."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


def _message(found: Any) -> str | None:
    """Returns what an error's JSON says."""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            return _message(found[name]) or str(found[name])[:300]
    return None


def in_order(ask: Callable[[int], T], concurrency: int, *asked: Endpoint) -> Generator[T, None, None]:
    """Yields ask(0), ask(1), ... in this order, with so many under way at a time; an error comes in its turn.

    When it is closed, requests under way are waited for, and those who are asked are asked no more.
    """
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="draftproof-endpoint")
    numbers = iter(range(2**62))
    pending: list[Future[T]] = [pool.submit(ask, i) for i in islice(numbers, concurrency)]
    try:
        while True:
            first = pending.pop(0)
            found = first.result()
            pending.append(pool.submit(ask, next(numbers)))
            yield found
    finally:
        for each in asked:
            each.stopped = True
        pool.shutdown(cancel_futures=True)
