"""The batched call: parity of the implementations, independence of rows, what is refused and what is flagged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof.distribution import Distribution
from draftproof.errors import MissingDependencyError, RowError, UsageError
from draftproof.kernels import torch as torch_kernel
from draftproof.noise import CounterNoise
from draftproof.rules.load import load_rule
from draftproof.types import Draft, as_tokens
from tests.laws import types_unchecked

RULES = ("token", "block", "match")


def as_numpy(array: Any) -> np.ndarray:
    return np.asarray(array)


def vectorised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the tensor implementation take the way it takes on a device."""
    monkeypatch.setattr(torch_kernel, "known", lambda array: False)


IMPLS: list[tuple[str, Callable[[Any], Any], bool]] = [
    ("numpy", lambda array: array, False),
    ("torch", torch.as_tensor, False),
    ("torch", torch.as_tensor, True),
]
IDS = ["numpy", "torch-by-row", "torch-all-rows"]


@pytest.fixture(params=IMPLS, ids=IDS)
def impl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Callable[[Any], Any]]:
    name, convert, all_rows = request.param
    if all_rows:
        vectorised(monkeypatch)
    return name, convert


class Batch:
    """Random rows with what is adversarial among them: equal and one-hot laws, zeros, disjoint supports, edge coins."""

    def __init__(self, batch: int, draft: int, vocab: int, seed: int, dtype: Any = np.float64) -> None:
        rng = np.random.default_rng((seed, vocab, draft))
        spread = rng.choice([0.1, 1.0, 4.0], (batch, 1, 1))
        logits = spread * rng.normal(size=(batch, draft + 1, vocab))
        other = logits[:, :draft] + rng.choice([0.0, 0.3, 2.0], (batch, 1, 1)) * rng.normal(size=(batch, draft, vocab))
        self.p, self.q = _softmax(logits), _softmax(other)
        kind = rng.integers(0, 8, batch)
        holes = rng.random((batch, 1, vocab)) < 0.5
        holes[:, :, 0] = False
        self.p[kind == 0] *= ~holes[kind == 0]
        self.q[kind == 1] *= ~holes[kind == 1]
        if vocab > 1:
            self.p[kind == 2, :, : vocab // 2] = 0.0
            self.q[kind == 2, :, vocab // 2 :] = 0.0
        certain = np.flatnonzero(kind == 3)
        self.p[certain] = 0.0
        self.p[certain[:, None], np.arange(draft + 1), rng.integers(0, vocab, (len(certain), draft + 1))] = 1.0
        self.p = (self.p / self.p.sum(-1, keepdims=True)).astype(dtype)
        self.q = (self.q / self.q.sum(-1, keepdims=True)).astype(dtype)
        drawn = self.q.astype(np.float64).cumsum(-1)
        u = rng.random((batch, draft, 1)) * drawn[..., -1:]
        self.x = (drawn <= u).sum(-1)
        self.uniforms = rng.random((batch, draft + 1))
        edges = rng.random((batch, draft + 1)) < 0.05
        self.uniforms[edges] = rng.choice([0.0, 1 - 2.0**-53], edges.sum())
        self.lengths = rng.integers(0, draft + 1, batch)
        if draft:
            self.x[rng.random(batch) < 0.05, -1] = -1
            self.x[rng.random(batch) < 0.05, 0] = vocab


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    result: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return result


def exempt(batch: Batch, row: int, rule: str) -> bool:
    """Returns whether a coin of the row lies within 1e-9 of a threshold, so that rounding may decide."""
    moved = []
    for shift in (-1e-9, 1e-9):
        uniforms = np.clip(batch.uniforms[row] + shift, 0.0, 1.0 - 2.0**-53)
        moved.append(
            dp.verify(
                batch.p[row],
                batch.x[row],
                batch.q[row],
                uniforms=uniforms,
                num_draft=int(batch.lengths[row]),
                rule=rule,
            ).tokens.tolist()
        )
    return bool(moved[0] != moved[1])


def parity(batch: Batch, rule: str, convert: Callable[[Any], Any]) -> tuple[int, int]:
    """Returns how many rows differ from the references, and how many of those rounding excuses."""
    with types_unchecked():
        mine = dp.verify(
            convert(batch.p), convert(batch.x), convert(batch.q), uniforms=convert(batch.uniforms),
            num_draft=convert(batch.lengths), rule=rule,
        )  # fmt: skip
        reference = dp.verify(
            batch.p, batch.x, batch.q, uniforms=batch.uniforms, num_draft=batch.lengths, rule=rule, impl="numpy"
        )
        differs = (as_numpy(mine.tokens) != reference.tokens).any(1) | (as_numpy(mine.failed) != reference.failed)
        differs |= as_numpy(mine.num_accepted) != reference.num_accepted
        rows = np.flatnonzero(differs).tolist()
        return len(rows), sum(exempt(batch, row, rule) for row in rows)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("all_rows", [False, True], ids=["by-row", "all-rows"])
@pytest.mark.parametrize(
    ("batch", "draft", "vocab"),
    [(20_000, 3, 7), (10_000, 4, 5), (5_000, 1, 2), (400, 2, 1), (40, 3, 50_257), (8, 2, 151_936)],
)
def test_tensors_give_the_references_tokens(
    rule: str, all_rows: bool, batch: int, draft: int, vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if all_rows:
        vectorised(monkeypatch)
    differing, excused = parity(Batch(batch, draft, vocab, 1), rule, torch.as_tensor)
    assert differing == excused
    assert excused <= 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["float16", "float32"])
@pytest.mark.parametrize("all_rows", [False, True], ids=["by-row", "all-rows"])
def test_narrow_types_give_the_references_tokens(
    rule: str, dtype: Any, all_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if all_rows:
        vectorised(monkeypatch)
    differing, excused = parity(Batch(2000, 3, 7, 2, dtype), rule, torch.as_tensor)
    assert differing == excused


@pytest.mark.parametrize("rule", RULES)
def test_bfloat16_is_judged_as_the_numbers_it_holds(rule: str, impl: tuple[str, Callable[[Any], Any]]) -> None:
    if impl[0] == "numpy":
        return  # NumPy has no such type; a tensor of it is taken by both
    batch = Batch(500, 3, 7, 3)
    p, q = (torch.as_tensor(each).to(torch.bfloat16) for each in (batch.p, batch.q))
    rest: dict[str, Any] = {
        "uniforms": torch.as_tensor(batch.uniforms),
        "num_draft": torch.as_tensor(batch.lengths),
        "rule": rule,
    }
    mine = dp.verify(p, torch.as_tensor(batch.x), q, **rest)
    wide = dp.verify(p, torch.as_tensor(batch.x), q, **rest, impl="numpy")
    assert (as_numpy(mine.tokens) == as_numpy(wide.tokens)).all()
    assert (as_numpy(mine.failed) == as_numpy(wide.failed)).all()


SHAPINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 0.0},
    {"top_k": 3},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.8, "min_p": 0.05},
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shaping", SHAPINGS, ids=str)
@pytest.mark.parametrize("deterministic", [False, True], ids=["sampled", "deterministic"])
def test_logits_are_shaped_as_the_sampler_shapes_them(
    rule: str, shaping: dict[str, Any], deterministic: bool, impl: tuple[str, Callable[[Any], Any]]
) -> None:
    name, convert = impl
    rng = np.random.default_rng(4)
    batch, draft, vocab = 60, 3, 11
    logits = 2 * rng.normal(size=(batch, draft + 1, vocab))
    other = logits[:, :draft] + rng.normal(size=(batch, draft, vocab))
    bound = dp.Sampler(**shaping).bind(0, (), vocab)
    p = np.array([[bound.law(as_tokens([]), row).dense(vocab) for row in rows] for rows in logits])
    q = np.array([[bound.law(as_tokens([]), row).dense(vocab) for row in rows] for rows in other])
    x = np.array([[rng.choice(vocab, p=row) for row in rows] for rows in q])
    uniforms = rng.random((batch, draft + 1))
    with types_unchecked():
        expected = dp.verify(p, x, None if deterministic else q, uniforms=uniforms, rule=rule)
        found = dp.verify_logits(
            convert(logits), convert(x), None if deterministic else convert(other), uniforms=convert(uniforms),
            rule=rule, impl=name, precision="float64", **shaping,
        )  # fmt: skip
        mixed = dp.verify_logits(
            convert(logits), convert(x), draft_probs=None if deterministic else convert(q), uniforms=convert(uniforms),
            rule=rule, precision="float64", **shaping,
        )  # fmt: skip
    assert as_numpy(found.tokens).tolist() == expected.tokens.tolist()
    assert as_numpy(mixed.tokens).tolist() == expected.tokens.tolist()
    assert not as_numpy(found.failed).any()


def test_options_are_each_rows_own(impl: tuple[str, Callable[[Any], Any]]) -> None:
    # https://github.com/ROCm/ATOM/pull/2318 and vllm 27077: temperatures from greedy to hot, beside each other.
    name, convert = impl
    rng = np.random.default_rng(5)
    temperatures = np.array([0.0, 1e-10, 1e-6, 1e-3, 1.0, 100.0])
    logits = 60000.0 * rng.normal(size=(6, 3, 7)).clip(-1, 1)
    x, uniforms = logits[:, :2].argmax(-1), rng.random((6, 3))
    together = dp.verify_logits(
        convert(logits), convert(x), uniforms=convert(uniforms), temperature=convert(temperatures),
        top_k=convert(np.array([0, 3, 0, 0, 2, 0])), precision="float64",
    )  # fmt: skip
    assert not as_numpy(together.failed).any()
    for row, temperature in enumerate(temperatures.tolist()):
        alone = dp.verify_logits(
            convert(logits[row]), convert(x[row]), uniforms=convert(uniforms[row]), temperature=temperature,
            top_k=[0, 3, 0, 0, 2, 0][row], impl=name, precision="float64",
        )  # fmt: skip
        assert as_numpy(alone.tokens).tolist() == as_numpy(together.tokens)[row].tolist()
    greedy = as_numpy(together.tokens)[:4]
    assert greedy.tolist() == logits[:4].argmax(-1).tolist()


@pytest.mark.parametrize("rule", RULES)
def test_rows_do_not_depend_on_their_batch(rule: str, impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    batch = Batch(40, 3, 6, 6)

    def run(rows: Any, width: int = 3) -> np.ndarray:
        p, q, x, u = batch.p[rows], batch.q[rows], batch.x[rows], batch.uniforms[rows]
        lengths = np.minimum(batch.lengths[rows], 3)
        if width > 3:  # padded on the right; the final token's coin stays the last
            extra = width - 3
            p = np.concatenate([p, np.repeat(p[:, -1:], extra, 1)], 1)
            q = np.concatenate([q, np.repeat(q[:, -1:], extra, 1)], 1)
            x = np.concatenate([x, np.full((len(x), extra), -1)], 1)
            u = (
                np.concatenate([u[:, :3], np.full((len(u), extra), 0.5), u[:, 3:]], 1)
                if rule != "match"
                else np.concatenate([u, np.full((len(u), extra), 0.5)], 1)
            )
        with types_unchecked():
            found = dp.verify(
                convert(p), convert(x), convert(q), uniforms=convert(u), num_draft=convert(lengths), rule=rule
            )
        return as_numpy(found.tokens)[:, :4]

    whole = run(slice(None))
    order = np.random.default_rng(0).permutation(40)
    assert (run(order) == whole[order]).all()
    assert (np.concatenate([run(slice(0, 13)), run(slice(13, 40))]) == whole).all()
    assert (run(slice(None), width=6) == whole).all()
    assert all((run(slice(row, row + 1))[0] == whole[row]).all() for row in range(0, 40, 7))


def test_strided_and_transposed_rows(impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    batch = Batch(30, 2, 9, 7)
    expected = dp.verify(batch.p, batch.x, batch.q, uniforms=batch.uniforms).tokens
    p = np.ascontiguousarray(batch.p.transpose(2, 0, 1)).transpose(1, 2, 0)  # vocab outermost in memory
    q = np.repeat(batch.q, 2, axis=2)[:, :, ::2]
    p, q = convert(p), convert(q)
    found = dp.verify(p, convert(batch.x), q, uniforms=convert(batch.uniforms))
    assert (as_numpy(found.tokens) == expected).all()


def test_arguments_are_not_written_to(impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    batch = Batch(20, 2, 5, 8)
    given = {name: convert(getattr(batch, name).copy()) for name in ("p", "x", "q", "uniforms")}
    for rule in RULES:
        dp.verify(given["p"], given["x"], given["q"], uniforms=given["uniforms"], rule=rule)
        dp.verify_logits(given["p"], given["x"], given["q"], uniforms=given["uniforms"], rule=rule, top_k=2)
    for name, value in given.items():
        assert (as_numpy(value) == getattr(batch, name)).all()


@pytest.mark.parametrize("rule", RULES)
def test_a_seed_draws_what_the_engines_rule_draws(rule: str, impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    batch = Batch(30, 3, 5, 9)
    lengths = np.minimum(batch.lengths, [(row < 0).argmax() if (row < 0).any() else 3 for row in batch.x])
    batch.x = batch.x.clip(0, 4)
    seeds = [100 + row for row in range(30)]
    positions = np.arange(30) * 7
    found = dp.verify(
        convert(batch.p), convert(batch.x), convert(batch.q), seed=seeds, positions=convert(positions),
        num_draft=convert(lengths), rule=rule,
    )  # fmt: skip
    for row in range(30):
        if as_numpy(found.failed)[row]:
            continue
        k = int(lengths[row])
        draft = Draft(as_tokens(batch.x[row, :k]), [Distribution(law) for law in batch.q[row, :k]])
        verdict = load_rule(rule).verify(
            [Distribution(law) for law in batch.p[row, : k + 1]], draft, CounterNoise(seeds[row]), int(positions[row])
        )
        assert as_numpy(found.num_accepted)[row] == verdict.accepted
        assert as_numpy(found.tokens)[row, verdict.accepted] == verdict.token


def test_one_seed_for_all_rows_and_one_row_alone() -> None:
    batch = Batch(4, 2, 5, 10)
    together = dp.verify(batch.p, batch.x, batch.q, seed=(3, 1), positions=[10, 11, 12, 13])
    alone = dp.verify(batch.p[2], batch.x[2], batch.q[2], seed=(3, 1), positions=12)
    assert alone.tokens.tolist() == together.tokens[2].tolist()
    assert alone.tokens.shape == (3,)
    num_accepted, tokens = alone
    assert int(num_accepted) == int(alone.num_accepted)
    assert tokens is alone.tokens


def _one(p: list[float], q: list[float] | None, x: int, u: list[float], convert: Callable[[Any], Any]) -> Any:
    rows = np.array([p, p])
    return dp.verify(
        convert(rows), convert(np.array([x])), None if q is None else convert(np.array([q])),
        uniforms=convert(np.array(u)),
    )  # fmt: skip


def test_field_reports(impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    # https://github.com/huggingface/transformers/pull/28508: acceptance 1/8; the residual is divided by its sum.
    p, q = [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]
    assert _one(p, q, 0, [0.1249, 0.0], convert).num_accepted == 1
    assert _one(p, q, 0, [0.1251, 0.0], convert).num_accepted == 0
    assert as_numpy(_one(p, q, 0, [0.5, 0.142], convert).tokens).tolist() == [1, -1]
    assert as_numpy(_one(p, q, 0, [0.5, 0.143], convert).tokens).tolist() == [2, -1]
    # https://github.com/vllm-project/vllm/pull/41834: a broken draft row never emits the token just rejected.
    healthy = [1e-20, 0.03, 0.97 - 1e-20]
    found = _one(healthy, [float("nan")] * 3, 0, [0.5, 0.0], convert)
    assert found.failed
    assert as_numpy(found.tokens).tolist() == [-1, -1]
    # Equal laws with a forced rejection, which rounding alone can bring: the token is drawn from p, and is no NaN.
    found = _one([0.5, 0.5, 0.0], [0.5, 0.5, 0.0], 0, [1 - 2.0**-53, 0.9], convert)
    assert not found.failed
    # https://github.com/huggingface/transformers/issues/32867: an argmax draft has a one-hot law.
    assert as_numpy(_one([0.5, 0.5], None, 0, [0.51, 0.0], convert).tokens).tolist() == [1, -1]
    assert _one([0.5, 0.5], None, 0, [0.49, 0.0], convert).num_accepted == 1
    # https://github.com/ohdearquant/lattice/issues/243: row 0 judges the first draft.
    assert as_numpy(_one([0.0, 1.0], None, 0, [0.0, 0.0], convert).tokens).tolist() == [1, -1]


def test_rejections_are_paired_with_their_rows(impl: tuple[str, Callable[[Any], Any]]) -> None:
    # https://github.com/Dao-AILab/flash-attention/pull/2779
    _, convert = impl
    p = np.zeros((3, 3, 10))
    for row, tokens in enumerate([[1, 7, 0], [8, 0, 0], [1, 2, 9]]):
        p[row, np.arange(3), tokens] = 1.0
    x = np.array([[1, 2], [1, 2], [1, 2]])
    found = dp.verify(convert(p), convert(x), uniforms=convert(np.full((3, 3), 0.5)))
    assert as_numpy(found.tokens).tolist() == [[1, 7, -1], [8, -1, -1], [1, 2, 9]]
    sharp = dp.verify_logits(
        convert(50 * p), convert(x), uniforms=convert(np.full((3, 3), 0.5)), top_p=0.9, precision="float64"
    )
    assert as_numpy(sharp.tokens).tolist() == as_numpy(found.tokens).tolist()


def test_narrow_probabilities_that_underflow_are_never_accepted() -> None:
    # https://github.com/deepseek-ai/DeepSpec/issues/31: p = 2e-9, q = 2e-8.
    p, q = np.array([[2e-9, 1 - 2e-9]] * 2, dtype=np.float32), np.array([[2e-8, 1 - 2e-8]], dtype=np.float32)
    x = np.array([0])
    assert dp.verify(p, x, q, uniforms=np.array([0.0999, 0.5])).num_accepted == 1
    assert dp.verify(p, x, q, uniforms=np.array([0.1001, 0.5])).num_accepted == 0
    half = dp.verify(p.astype(np.float16), x, q.astype(np.float16), uniforms=np.array([0.0, 0.5]))
    assert half.num_accepted == 0
    assert half.failed


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fault", ["nan", "negative", "sum", "all-zero"])
def test_a_bad_row_fails_alone(rule: str, fault: str, impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    rng = np.random.default_rng(11)
    p = _softmax(rng.normal(size=(4, 3, 6)))
    x = rng.integers(0, 6, (4, 2))
    uniforms = rng.random((4, 3))
    clean = as_numpy(dp.verify(convert(p), convert(x), uniforms=convert(uniforms), rule=rule).tokens)
    broken = p.copy()
    broken[2, 0] = {
        "nan": np.where(np.arange(6) == 3, np.nan, p[2, 0]),
        "negative": p[2, 0] + np.array([0.3, -0.6, 0.3, 0, 0, 0]),
        "sum": 3 * p[2, 0],
        "all-zero": np.zeros(6),
    }[fault]
    found = dp.verify(convert(broken), convert(x), uniforms=convert(uniforms), rule=rule)
    assert as_numpy(found.failed).tolist() == [False, False, True, False]
    assert as_numpy(found.tokens)[2].tolist() == [-1, -1, -1]
    assert as_numpy(found.num_accepted)[2] == 0
    assert (as_numpy(found.tokens)[[0, 1, 3]] == clean[[0, 1, 3]]).all()
    with pytest.raises(RowError, match=r"row 2 .* is no law"):
        dp.verify(convert(broken), convert(x), uniforms=convert(uniforms), rule=rule, bad_rows="raise")


def test_broken_logits_fail_their_row(impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    logits = np.random.default_rng(12).normal(size=(4, 2, 5))
    logits[0, 0, 2], logits[1, 0], logits[2, 0, 1] = np.nan, -np.inf, np.inf
    logits[3, 0, 1] = -np.inf  # an impossible token is no fault
    for temperature in (0.0, 1.0):
        found = dp.verify_logits(
            convert(logits), convert(np.array([[1]] * 4)), uniforms=convert(np.full((4, 2), 0.5)),
            temperature=temperature,
        )  # fmt: skip
        assert as_numpy(found.failed).tolist() == [True, True, True, False]


def test_a_token_its_own_law_excludes_fails_its_row(impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    found = _one([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], 1, [0.1, 0.1], convert)
    assert found.failed
    with pytest.raises(RowError, match="draft token 1 at place 0 has probability 0"):
        dp.verify(
            convert(np.array([[0.5, 0.5]] * 2)), convert(np.array([1])), convert(np.array([[1.0, 0.0]])),
            uniforms=convert(np.array([0.1, 0.1])), bad_rows="raise",
        )  # fmt: skip


def test_bad_coins_on_a_device_fail_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    vectorised(monkeypatch)
    p = torch.full((3, 2, 4), 0.25)
    uniforms = torch.tensor([[0.1, 0.2], [1.0, 0.2], [0.1, float("nan")]])
    found = dp.verify(p, torch.zeros(3, 1, dtype=torch.long), uniforms=uniforms)
    assert found.failed.tolist() == [False, True, True]
    found = dp.verify(
        p, torch.zeros(3, 1, dtype=torch.long), uniforms=uniforms.clamp(max=0.5).nan_to_num(),
        num_draft=torch.tensor([0, 2, -1]),
    )  # fmt: skip
    assert found.failed.tolist() == [False, True, True]


GOOD: dict[str, Any] = {
    "target_probs": np.full((2, 3, 4), 0.25),
    "draft_tokens": np.zeros((2, 2), dtype=int),
    "draft_probs": np.full((2, 2, 4), 0.25),
    "uniforms": np.full((2, 3), 0.5),
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target_probs": np.full(4, 0.25)}, "target_probs has shape"),
        ({"target_probs": np.full((2, 3, 4), 1)}, "target_probs has dtype int64"),
        ({"draft_tokens": np.zeros((2, 3), dtype=int)}, r"draft_tokens has shape \(2, 3\)"),
        ({"draft_tokens": np.zeros((2, 2))}, "draft_tokens has dtype float64"),
        ({"draft_probs": np.full((2, 2, 5), 0.2)}, r"draft_probs has shape \(2, 2, 5\)"),
        ({"draft_probs": np.full((2, 2, 4), True)}, "draft_probs has dtype bool"),
        ({"uniforms": np.full((2, 2), 0.5)}, r"uniforms has shape \(2, 2\)"),
        ({"uniforms": np.full((2, 3), 1.0)}, "uniforms holds a value outside"),
        ({"uniforms": np.full((2, 3), np.nan)}, "uniforms holds a value outside"),
        ({"uniforms": None}, "either uniforms or a seed"),
        ({"seed": 1}, "either uniforms or a seed"),
        ({"positions": 4}, "positions belong to a seed"),
        ({"uniforms": None, "seed": 1}, "a seed needs positions"),
        ({"uniforms": None, "seed": [1, 2, 3], "positions": 0}, r"seed \[1, 2, 3\] has 3 entries for 2 rows"),
        ({"uniforms": None, "seed": 1, "positions": [1, 2, 3]}, "positions .* must be one integer"),
        ({"uniforms": None, "seed": 0.5, "positions": 0}, "seed 0.5 is not an integer"),
        ({"num_draft": [1, 3]}, r"num_draft \[1, 3\] must lie in 0..2"),
        ({"num_draft": [1]}, "num_draft .* one for each of 2 rows"),
        ({"num_draft": [[1], [1, 2]]}, "num_draft .* is no array"),
        ({"target_probs": None}, "target_probs is None"),
        ({"draft_tokens": None}, "draft_tokens is None"),
        ({"target_probs": 1.0}, r"target_probs has shape \(\)"),
        ({"uniforms": np.zeros((2, 3), dtype=int)}, "uniforms has dtype int64"),
        ({"uniforms": np.full((2, 3), 0.5 + 1j)}, "(?s)uniforms .* has dtype complex128"),
        ({"uniforms": None, "seed": [None, None], "positions": 0}, r"seed \[None, None\]"),
        ({"uniforms": None, "seed": True, "positions": 0}, "seed True is not"),
        ({"uniforms": None, "seed": 3, "positions": 5}, "seed 3 with position 5 comes twice"),
        ({"uniforms": None, "seed": [1, 2], "positions": 2**63}, "positions .* below"),
        ({"num_draft": [0.5, 1.0]}, "num_draft .* must be one integer"),
        ({"rule": "blok"}, "rule 'blok' is unknown; use one of: token, block, match"),
        ({"impl": "triton"}, "impl 'triton' is unknown"),
        ({"impl": "torch"}, "takes tensors"),
        ({"bad_rows": "ignore"}, "bad_rows 'ignore' is unknown"),
        ({"target_probs": torch.full((2, 3, 4), 0.25)}, "use torch.as_tensor"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(unchecked: None, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dp.verify(**(GOOD | change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"temperature": np.array([1.0, np.nan])}, "temperature nan"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_k": -1}, "top_k -1"),
        ({"min_p": np.array([0.5] * 3)}, "min_p has shape"),
        ({"temperature": "hot"}, "temperature 'hot' has dtype"),
        ({"precision": "half"}, "precision 'half'"),
        ({"top_k": [2.9, 2.9]}, "top_k .* is not an integer"),
        ({"top_k": True}, "top_k True is not an integer"),
        ({"min_p": [[0.1], [0.1, 0.2]]}, "min_p .* is no array"),
        ({"draft_probs": GOOD["draft_probs"]}, "draft_logits and draft_probs"),
    ],
)
def test_wrong_options_are_refused_by_name(unchecked: None, change: dict[str, Any], said: str) -> None:
    given = {"target_logits": GOOD["target_probs"], "draft_logits": GOOD["draft_probs"]}
    with pytest.raises(UsageError, match=said):
        dp.verify_logits(**given, draft_tokens=GOOD["draft_tokens"], uniforms=GOOD["uniforms"], **change)


def test_large_logits_keep_what_tells_them_apart(impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    logits = np.tile(1e8 + np.array([0.0, 1.0, 2.0]), (400, 1, 1))
    uniforms = ((np.arange(400) + 0.5) / 400)[:, None]
    found = dp.verify_logits(convert(logits), convert(np.zeros((400, 0), dtype=int)), uniforms=convert(uniforms))
    counts = np.bincount(as_numpy(found.tokens)[:, 0], minlength=3)
    assert counts.tolist() == pytest.approx([36.0, 97.9, 266.1], abs=1.1)


def test_options_may_be_any_tensor() -> None:
    batch = Batch(4, 2, 5, 14)
    uniforms = torch.as_tensor(batch.uniforms).to(torch.bfloat16).clamp(max=0.99)
    logits = torch.log(torch.as_tensor(batch.p) + 1e-9)
    one = dp.verify_logits(logits, torch.as_tensor(batch.x), uniforms=uniforms, temperature=0.5, num_draft=2)
    two = dp.verify_logits(
        logits, torch.as_tensor(batch.x), uniforms=uniforms, num_draft=torch.tensor([2, 2, 2, 2]),
        temperature=torch.full((4,), 0.5, dtype=torch.bfloat16, requires_grad=True),
    )  # fmt: skip
    assert torch.equal(one.tokens, two.tokens)
    with pytest.raises(UsageError, match="target_logits is on meta"):
        dp.verify_logits(*(torch.empty(2, 3, 4, device="meta"), torch.zeros(2, 2)), uniforms=torch.zeros(2, 3))


def test_a_missing_library_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"draftproof\[torch\]"):
        dp.verify(**GOOD, impl="torch")


def test_an_empty_batch_and_an_empty_draft(impl: tuple[str, Callable[[Any], Any]]) -> None:
    _, convert = impl
    found = dp.verify(
        convert(np.zeros((0, 3, 4))), convert(np.zeros((0, 2), dtype=int)), uniforms=convert(np.zeros((0, 3)))
    )
    assert as_numpy(found.tokens).shape == (0, 3)
    bonus = dp.verify(
        convert(np.full((1, 4), 0.25)), convert(np.zeros(0, dtype=int)), uniforms=convert(np.array([0.6]))
    )
    assert as_numpy(bonus.tokens).tolist() == [2]


COMPILED = """
import torch
import draftproof as dp

generator = torch.Generator().manual_seed(0)
target = 2 * torch.randn(8, 3, 5, generator=generator)
draft = target[:, :2] + torch.randn(8, 2, 5, generator=generator)
tokens = torch.multinomial(draft.softmax(-1).flatten(0, 1), 1, generator=generator).view(8, 2)
uniforms = torch.rand(8, 3, generator=generator, dtype=torch.float64)
for rule in ("token", "block", "match"):
    def judge(target, tokens, draft, uniforms):
        found = dp.verify(target.softmax(-1), tokens, draft.softmax(-1), uniforms=uniforms, rule=rule)
        return found.num_accepted, found.tokens, found.failed
    def judge_logits(target, tokens, draft, uniforms):
        found = dp.verify_logits(
            target, tokens, draft, uniforms=uniforms, rule=rule, top_p=0.9, temperature=0.8, precision="float64"
        )
        return found.num_accepted, found.tokens, found.failed
    for each in (judge, judge_logits):
        compiled = torch.compile(each, backend="eager", fullgraph=True)
        mine, plain = (run(target, tokens, draft, uniforms) for run in (compiled, each))
        assert all(map(torch.equal, mine, plain)), (rule, each.__name__)
print("the same")
"""


def test_it_runs_under_torch_compile() -> None:
    # In a process of its own: the run-time type checker of the tests cannot be compiled.
    result = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300, check=False)
    assert result.stdout == "the same\n", result.stderr
