"""How verification functions of different libraries are called: each as an answer to laws, a draft and coins."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.audit.witness import Text
from draftproof.errors import MissingDependencyError, UsageError, choice_error

Numbers: TypeAlias = Float[np.ndarray, "..."]
Function: TypeAlias = Callable[..., Any]


class MalformedAnswer(Exception):
    """A verification function returned what is no answer; the message says what and to what."""


@dataclass(frozen=True)
class Convention:
    """A way to call a verification function.

    Attributes:
        convert: (p, x, q, u) of a batch -> its arguments, copies with a batch axis; u, and the last, may be None.
        call: (function, arguments of a batch, or of one request if not `batched`) -> (num_accepted, tokens).
        batched: whether it takes a batch; None: to be tried.
        injectable: whether it can be given its uniforms.
        about: the signature, for people.
    """

    convert: Callable[[Numbers, Int[np.ndarray, "..."], Numbers, Numbers | None], tuple[Any, ...]]
    call: Callable[..., tuple[Any, Any]]
    batched: bool | None
    injectable: bool
    about: str


def _copies(p: Numbers, x: Int[np.ndarray, "..."], q: Numbers, u: Numbers | None) -> tuple[Any, ...]:
    return p.copy(), x.copy(), q.copy(), None if u is None else u.copy()


def _logs(p: Numbers, x: Int[np.ndarray, "..."], q: Numbers, u: Numbers | None) -> tuple[Any, ...]:
    return _log(p), x.copy(), _log(q), None if u is None else u.copy()


def _tensors(p: Numbers, x: Int[np.ndarray, "..."], q: Numbers, u: Numbers | None) -> tuple[Any, ...]:
    # Uniforms stay below 1 in single precision too: 1 is no value of a generator.
    return _tensor(p), _tensor(x), _tensor(q), None if u is None else _tensor(np.minimum(u, 1.0 - 2.0**-24))


def _canonical(function: Function, p: Any, x: Any, q: Any, u: Any) -> tuple[Any, Any]:
    return _pair(function(p, x, q) if u is None else function(p, x, q, u))


def _candidates(p: Numbers, x: Int[np.ndarray, "..."], q: Numbers, u: Numbers | None) -> tuple[Any, ...]:
    prompt = np.zeros((*x.shape[:-1], 1), dtype=x.dtype)  # a candidate is the prompt's last token and the draft
    return _tensor(np.concatenate([prompt, x], axis=-1)), _tensor(_log(q)), _tensor(_log(p)), None


def _transformers(function: Function, candidate: Any, q: Any, p: Any, _: None) -> tuple[Any, Any]:
    valid, matches = function(candidate[None], q[None], q.shape[0], p[None])
    return matches, valid[0]


def _flashinfer(function: Function, p: Any, x: Any, q: Any, u: Any) -> tuple[Any, Any]:
    tokens = function(q, x.int(), *([] if u is None else [u]), p)[0]
    return _emitted(tokens), tokens


def _vllm(function: Function, p: Any, x: Any, q: Any, _: Any) -> tuple[Any, Any]:
    import torch

    batch, k, vocab = q.shape
    counts = [k] * batch
    total = torch.cumsum(torch.tensor(counts), 0).int()
    bonus = torch.multinomial(p[:, -1], 1).int()
    tokens = function(
        x.reshape(-1).int(),
        counts,
        k,
        total,
        q.reshape(batch * k, vocab),
        p[:, :-1].reshape(batch * k, vocab).log(),
        bonus,
        _Sampling(torch.ones(batch)),
    )
    return _emitted(tokens), tokens


@dataclass
class _Sampling:
    """What vLLM's function reads of its metadata: every request sampled, at temperature 1."""

    temperature: Any
    all_greedy: bool = False
    all_random: bool = True
    top_k: None = None
    top_p: None = None
    generators: dict[int, Any] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.generators = {}


CONVENTIONS: dict[str, Convention] = {
    "probs": Convention(
        _copies,
        _canonical,
        None,
        True,
        "f(target_probs, draft_tokens, draft_probs, uniforms) -> (num_accepted, tokens)",
    ),
    "logits": Convention(
        _logs,
        _canonical,
        None,
        True,
        "f(target_logits, draft_tokens, draft_logits, uniforms) -> (num_accepted, tokens)",
    ),
    "torch": Convention(_tensors, _canonical, None, True, "as probs, with float32 tensors"),
    "transformers": Convention(
        _candidates,
        _transformers,
        False,
        False,
        "f(candidate_input_ids, candidate_logits, candidate_length, new_logits[, is_done_candidate]) "
        "-> (valid_tokens, n_matches)",
    ),
    "flashinfer": Convention(
        _tensors,
        _flashinfer,
        True,
        True,
        "f(draft_probs, draft_token_ids, [uniforms,] target_probs) -> (output_token_ids, accepted, emitted)",
    ),
    "vllm": Convention(
        _tensors,
        _vllm,
        True,
        False,
        "f(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits, "
        "bonus_token_ids, sampling_metadata) -> output_token_ids",
    ),
}
"""The conventions by name. "probs" is the canonical one: one request, or a batch of them on a first axis."""


class Suspect:
    """A verification function, called in its own way.

    Args:
        function: it.
        convention: a name in `CONVENTIONS`.
        hidden: whether it draws its own randomness; None: it does if its convention has no uniforms, or it names
            fewer than four parameters.
        batched: whether it takes a batch; None: tried.

    Raises:
        UsageError: if the convention is unknown, or the function cannot be called so.
    """

    def __init__(
        self, function: Function, convention: str = "probs", hidden: bool | None = None, batched: bool | None = None
    ) -> None:
        if convention not in CONVENTIONS:
            raise choice_error("convention", convention, list(CONVENTIONS))
        if not callable(function):
            raise UsageError(f"function {function!r} cannot be called; give a verification function")
        self.function = _as_called(function)
        self.convention = CONVENTIONS[convention]
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.hidden = hidden if hidden is not None else not self.convention.injectable or _takes(self.function) < 4
        if not self.hidden and not self.convention.injectable:
            raise UsageError(f"convention {convention!r} has no uniforms to inject; leave hidden out")
        known = self.convention.batched if batched is None else batched
        self.batched = self._takes_batches() if known is None else known
        self.answered = False

    def answers(
        self,
        p: Float[np.ndarray, "batch places vocab"],
        x: Int[np.ndarray, "batch draft"],
        q: Float[np.ndarray, "batch draft vocab"],
        u: Float[np.ndarray, "batch places"] | None,
    ) -> list[Text]:
        """Returns what is emitted for each request.

        Raises:
            UsageError: if the function raises at its first call.
            MalformedAnswer: if it raises later, or returns what is no answer.
        """
        arguments = self.convention.convert(p, x, q, u)
        if self.batched:
            counts, tokens = self._call(arguments, x)
            try:
                rows = list(zip(_host(counts).reshape(-1).tolist(), _rows(tokens), strict=True))
            except (TypeError, ValueError) as error:
                raise self._wrong(f"a batch of {len(x)} requests gave answers of other shapes ({error})") from error
            if len(rows) != len(x):
                raise self._wrong(f"a batch of {len(x)} requests gave {len(rows)} answers")
            return [self._text(n, tokens, x[i], p.shape[-1]) for i, (n, tokens) in enumerate(rows)]
        texts = []
        for i in range(len(x)):
            count, tokens = self._call([None if each is None else each[i] for each in arguments], x[i])
            number = _host(count).reshape(-1).tolist()
            texts.append(
                self._text(
                    number[0] if len(number) == 1 else number, _host(tokens).reshape(-1).tolist(), x[i], p.shape[-1]
                )
            )
        return texts

    def _call(self, arguments: Sequence[Any], x: Int[np.ndarray, "..."]) -> tuple[Any, Any]:
        try:
            return self.convention.call(self.function, *arguments)
        except (UsageError, MissingDependencyError):
            raise
        except (Exception, SystemExit) as error:
            raise self._wrong(f"{said(error)} (draft {x[0].tolist() if x.ndim > 1 else x.tolist()})") from error

    def _text(self, count: Any, tokens: Sequence[Any], draft: Int[np.ndarray, "draft"], vocab: int) -> Text:
        try:
            accepted = index(count)
            text = tuple(index(token) for token in tokens[: max(accepted, 0) + 1])
        except TypeError:
            raise self._wrong(
                f"draft {draft.tolist()} gave num_accepted {count} and tokens {list(tokens)}: not all are whole numbers"
            ) from None
        if not 0 <= accepted <= len(draft) or len(text) != accepted + 1:
            raise self._wrong(
                f"draft {draft.tolist()} gave num_accepted {accepted} and tokens {list(tokens)}, which should be "
                "the accepted ones and one more"
            )
        if text[:-1] != tuple(draft[:accepted].tolist()):
            raise self._wrong(f"draft {draft.tolist()}, {accepted} accepted, gave tokens {list(text)}: not the draft's")
        if not 0 <= text[-1] < vocab:
            raise self._wrong(f"draft {draft.tolist()} gave token {text[-1]}, which is none of 0..{vocab - 1}")
        self.answered = True
        return text

    def _wrong(self, what: str) -> Exception:
        if self.answered:
            return MalformedAnswer(what)
        return UsageError(
            f"{self.name} gave no answer: {what}; it is called as {self.convention.about}; if that is not its way, "
            f"choose another convention of: {', '.join(CONVENTIONS)}"
        )

    def _takes_batches(self) -> bool:
        p = np.full((2, 3, 4), 0.25)
        u = None if self.hidden else np.full((2, 3), 0.5)
        try:
            arguments = self.convention.convert(p, np.array([[0, 1], [1, 2]]), p[:, :2], u)
            counts, tokens = self.convention.call(self.function, *arguments)
            return len(_host(counts).reshape(-1)) == 2 and len(_rows(tokens)) == 2
        except (Exception, SystemExit):
            return False


def resolve(spec: str) -> Function:
    """Returns the function that "module:function" means.

    Raises:
        UsageError: if there is none.
    """
    module, colon, path = spec.partition(":")
    if not colon or not module or not path:
        raise UsageError(f"function {spec!r} is not of the form module:function, for example draftproof:verify")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"function {spec!r}: module {module} cannot be imported ({error}); check PYTHONPATH") from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"function {spec!r}: module {module} raised {type(error).__name__}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"function {spec!r}: {module} has no {path}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"function {spec!r} is a {type(found).__name__}, which cannot be called")
    result: Function = found
    return result


def _as_called(function: Function) -> Function:
    """Returns a function whose uniforms come fourth, if it takes them by name only, and which needs no more.

    Earlier versions of transformers' want to be told whether the candidate ends the text.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    if "is_done_candidate" in parameters:
        return partial(function, is_done_candidate=False)
    if "uniforms" in parameters and parameters["uniforms"].kind is inspect.Parameter.KEYWORD_ONLY:
        return lambda p, x, q, u: function(p, x, q, uniforms=u)
    return function


def _takes(function: Function) -> int:
    """Returns how many arguments the function needs by place, uniforms counted in; many if that cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 4
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 4
    return sum(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and (each.default is each.empty or each.name in ("u", "uniforms"))
        for each in parameters
    )


def _pair(answer: Any) -> tuple[Any, Any]:
    try:
        counts, tokens = answer
    except (TypeError, ValueError):
        raise TypeError(f"it returned {answer!r:.200}, not (num_accepted, tokens)") from None
    return counts, tokens


def said(error: BaseException) -> str:
    """Returns an exception and where it was raised, in a line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _emitted(tokens: Any) -> Int[np.ndarray, "batch"]:
    """Returns how many draft tokens are accepted in rows padded with -1."""
    accepted: Int[np.ndarray, "batch"] = (_host(tokens) >= 0).sum(-1) - 1
    return accepted


def _log(probs: Numbers) -> Numbers:
    with np.errstate(divide="ignore"):
        logits: Numbers = np.log(probs)
    return logits


def _tensor(array: np.ndarray) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            'this convention needs PyTorch, which is not installed; run: pip install "draftproof[torch]"'
        ) from None
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64 if array.dtype.kind == "i" else np.float32))


def _host(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _rows(tokens: Any) -> list[list[int]]:
    if isinstance(tokens, list | tuple):
        return [_host(row).reshape(-1).tolist() for row in tokens]
    rows: list[list[int]] = _host(tokens).tolist()
    return rows
