"""The loop on transformers models: plain decoding's text whatever drafts, and the law where it is sampled."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from draftproof.draft import Drafter, ModelDrafter, NullDrafter
from draftproof.engine import Engine
from draftproof.models.base import Query
from draftproof.models.load import load
from draftproof.models.toy import ToyModel
from draftproof.models.transformers import TransformersModel
from draftproof.request import Request
from draftproof.sampling import Sampler
from draftproof.types import NO_TOKENS, Completion, Tokens, as_tokens
from tests.doubles import FunctionDrafter, constant_drafter, random_drafter
from tests.models import gguf_file, tiny_transformers
from tests.models.test_transformers_tokenizer import sentence_pieces
from tests.test_engine_law import distance, engine_law, target_law

PROMPTS = [tiny_transformers.ids(seed, length) for seed, length in ((1, 3), (2, 9), (3, 17), (4, 40))]
KINDS = ["llama", "gpt2", "gemma", "mistral", "mamba", "lfm2", "qwen3_next"]
GREEDY = Sampler(temperature=0.0)
WARM = Sampler(temperature=0.8, top_p=0.95)
MOST = 24


@cache
def target(kind: str) -> TransformersModel:
    return tiny_transformers.model(kind)


@cache
def drafters(kind: str) -> dict[str, Drafter]:
    model = target(kind)
    return {
        "good": ModelDrafter(tiny_transformers.nudged(model, 0.05)),
        "itself": ModelDrafter(model),
        "random": random_drafter(tiny_transformers.VOCABULARY - 1),
        "constant": constant_drafter(7),
    }


@cache
def plain(kind: str, seeded: bool) -> list[list[int]]:
    engine = Engine(target(kind), NullDrafter(), sampler=WARM if seeded else GREEDY)
    return [
        engine.generate(prompt, max_tokens=MOST, seed=i if seeded else None).tokens for i, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("seeded", [False, True], ids=["greedy", "coupled"])
@pytest.mark.parametrize("length", [1, 3, 8, "auto"])
@pytest.mark.parametrize("drafter", ["good", "random", "constant"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_equals_plain_decoding(kind: str, drafter: str, length: int | Literal["auto"], seeded: bool) -> None:
    engine = Engine(target(kind), drafters(kind)[drafter], "coupled", WARM if seeded else GREEDY, length)
    requests = [Request(prompt, seed=i if seeded else None) for i, prompt in enumerate(PROMPTS)]
    together = engine.generate_batch(requests, max_tokens=MOST)
    assert [each.tokens for each in together] == plain(kind, seeded)
    assert all(each.drafter_error is None for each in together)
    alone = engine.generate(requests[2], max_tokens=MOST)
    assert alone.tokens == plain(kind, seeded)[2]
    if length != "auto":
        assert all(each.counts.num_draft_tokens > 0 for each in together)


@pytest.mark.parametrize("kind", KINDS)
def test_rotating_acceptance_in_a_batch(kind: str) -> None:
    """Each request's draft stands for another length in each round: 0, 1, 3, 4 of 4 and on."""
    texts = plain(kind, False)
    whole = {tuple(prompt): [*prompt, *text] for prompt, text in zip(PROMPTS, texts, strict=True)}

    def propose(tokens: np.ndarray) -> list[int]:
        text = next(text for prompt, text in whole.items() if tuple(tokens[: len(prompt)].tolist()) == prompt)
        right = text[len(tokens) : len(tokens) + 4]
        good = (0, 1, 3, 4)[len(tokens) % 4]
        return [token if i < good else (token + 1) % 299 for i, token in enumerate(right)]

    engine = Engine(target(kind), FunctionDrafter(propose), sampler=GREEDY, num_draft_tokens=4)
    assert [each.tokens for each in engine.generate_batch(PROMPTS, max_tokens=MOST)] == texts


@pytest.mark.parametrize("kind", KINDS)
def test_shared_prefixes_and_a_second_turn(kind: str) -> None:
    model, prompt = target(kind), PROMPTS[3]
    engine = Engine(model, drafters(kind)["good"], sampler=GREEDY, num_draft_tokens=3)
    first = engine.generate(prompt, max_tokens=9)
    second = [*prompt, *first.tokens, 5, 6, 7]
    for text in (second, prompt[:30], [*prompt[:20], 9, 9], second[:-4]):
        got = engine.generate(text, max_tokens=9)
        with Engine(model, NullDrafter(), sampler=GREEDY) as fresh:
            assert got.tokens == fresh.generate(text, max_tokens=9).tokens
    batch = engine.generate_batch([prompt, prompt, second, prompt[:30]], max_tokens=9)
    assert batch[0].tokens == batch[1].tokens == first.tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_target_that_drafts_for_itself_is_always_right(kind: str, length: int) -> None:
    for sampler, rule in ((GREEDY, "auto"), (Sampler(), "token"), (Sampler(), "block")):
        engine = Engine(target(kind), drafters(kind)["itself"], rule, sampler, length)
        for step in engine.stream(PROMPTS[1], max_tokens=60):
            assert step.num_accepted_tokens == step.num_draft_tokens
            assert step.num_draft_tokens == length or step.finish_reason is not None
        # After forced rejections, and after a prefix that another text had: the draft model's rows are still right.
        text = [*PROMPTS[1], *engine.generate(PROMPTS[1], max_tokens=5).tokens, 3]
        again: Completion = engine.generate(text, max_tokens=40)
        assert again.counts.draft_acceptance_rate == 1.0


@pytest.mark.parametrize("kind", ["llama", "gemma", "lfm2"])
def test_a_draft_model_lags_rightly_after_rejections(kind: str) -> None:
    """Its rows are those of a model that reads the text afresh, wherever the last draft was cut."""
    model = target(kind)
    text = as_tokens(tiny_transformers.ids(5, 80))
    with model.session() as session:
        for end, drafted in ((10, 4), (12, 4), (13, 4), (18, 4), (18, 2), (23, 1)):
            for place in range(end, end + drafted):
                guess = np.concatenate([text[:end], as_tokens(tiny_transformers.ids(place, place - end))])
                (rows,) = session.score([Query(0, guess, NO_TOKENS)])
                with model.session() as fresh:
                    (right,) = fresh.score([Query(0, guess, NO_TOKENS)])
                np.testing.assert_allclose(rows[0], right[0], atol=2e-3)


def tabular(model: TransformersModel) -> ToyModel:
    """The same law as a table, each text read afresh."""

    def table(tokens: Tokens) -> np.ndarray:
        with model.session() as session:
            (rows,) = session.score([Query(0, tokens, NO_TOKENS)])
            return rows[0].astype(np.float64)

    return ToyModel(table, model.vocab_size)


def law_error(model: TransformersModel, drafter: Drafter, rule: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """Returns how far the law of three tokens is from the target's, through the real backend."""
    engine = Engine(model, drafter, rule, Sampler(), num_draft_tokens=2)
    ours = engine_law(engine, Request([1, 0], max_tokens=3), monkeypatch)
    return distance(ours, target_law(tabular(model), [1, 0], Sampler(), 3))


# Passes over one row and over several differ in the last digits of float32, and no more.
FLOAT32 = 2e-6


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    "own", [None, Sampler(top_k=2), Sampler(temperature=0.6)], ids=["same law", "top-k on the draft only", "cooler"]
)
def test_the_law_of_sampled_text(rule: str, own: Sampler | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_transformers.tiny_vocabulary(3, seed=1)
    drafter = ModelDrafter(tiny_transformers.tiny_vocabulary(3, seed=2), own)
    assert law_error(model, drafter, rule, monkeypatch) < FLOAT32


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    ("letters", "mode"), [("abc", "same"), ("bac", "intersection"), ("cdeab", "intersection"), ("xay", "text")]
)
def test_the_law_across_vocabularies(letters: str, mode: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_transformers.tiny_vocabulary(4, seed=1)
    other = tiny_transformers.tiny_vocabulary(len(letters), seed=3, letters=letters)
    drafter = ModelDrafter(other, vocabulary="text" if mode == "text" else "auto")
    assert law_error(model, drafter, rule, monkeypatch) < FLOAT32
    assert drafter.mode == mode


def _pair(name: str) -> tuple[TransformersModel, TransformersModel]:
    """A target, and a draft model whose tokenizer differs from it in one way."""
    end, start = "<|end|>", "<s>"
    make = tiny_transformers.tokenizer
    ours = make(300, (end, start))
    theirs = {
        "more special tokens": make(303, (end, start, "<tool>", "<pad>", "<think>")),
        "another end": make(300, ("</s>", start)),
        "fewer merges": make(270, (end,)),
        "another kind of tokenizer": sentence_pieces(),
        "padded": ours,
    }[name]
    size = len(theirs) if name != "padded" else 320
    target = TransformersModel(tiny_transformers.module("llama", 0, eos_token_id=None), ours, name="target")
    draft = TransformersModel(tiny_transformers.module("llama", 1, vocab_size=size), theirs, name="draft")
    return target, draft


@pytest.mark.parametrize("vocabulary", ["auto", "text"])
@pytest.mark.parametrize(
    "name", ["more special tokens", "another end", "fewer merges", "another kind of tokenizer", "padded"]
)
def test_pairs_of_tokenizers(name: str, vocabulary: Literal["auto", "text"]) -> None:
    """Whatever a draft model's vocabulary has or lacks, the text is the target's (B47)."""
    model, draft = _pair(name)
    prompt = model.tokenizer.encode("hello there, the rest of the text is here: ")
    for sampler, seed in ((GREEDY, None), (WARM, 3)):
        expected = Engine(model, NullDrafter(), sampler=sampler).generate(prompt, max_tokens=30, seed=seed)
        drafter = ModelDrafter(draft, vocabulary=vocabulary)
        out = Engine(model, drafter, sampler=sampler, num_draft_tokens=4).generate(prompt, max_tokens=30, seed=seed)
        assert out.tokens == expected.tokens
        assert out.drafter_error is None
        assert out.counts.num_draft_tokens > 0


def test_every_temperature_in_one_batch() -> None:
    """Rows of a batch do not lend each other their temperature, and none is 0/0 (B40)."""
    model, drafter = target("llama"), drafters("llama")["good"]
    temperatures = [0.0, 1e-10, 1e-6, 1e-3, 1.0, 100.0]
    requests = [Request(PROMPTS[1], Sampler(temperature=each), seed=5) for each in temperatures]
    together = Engine(model, drafter, "coupled", num_draft_tokens=3).generate_batch(requests, max_tokens=12)
    for request, out in zip(requests, together, strict=True):
        alone = Engine(model, NullDrafter(), "coupled").generate(request, max_tokens=12)
        assert out.tokens == alone.tokens
    assert together[0].tokens == together[1].tokens == together[2].tokens == together[3].tokens
    for own, asked in ((Sampler(temperature=0.0), Sampler()), (Sampler(), Sampler(temperature=0.0))):
        engine = Engine(model, ModelDrafter(tiny_transformers.nudged(model, 0.05), own), "block", asked, 3)
        assert engine.generate(PROMPTS[1], max_tokens=12).finish_reason == "length"


@pytest.mark.parametrize("kind", ["llama", "gemma", "mamba", "lfm2"])
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_an_error_in_the_third_round_leaves_a_sound_engine(
    kind: str, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error reaches the caller or switches the drafter off; the next request is as on a fresh engine (B51)."""
    model, draft = tiny_transformers.model(kind), tiny_transformers.model(kind, seed=1)
    failing = model if whose == "target" else draft
    engine = Engine(model, ModelDrafter(draft), sampler=GREEDY, num_draft_tokens=3)
    expected = plain(kind, False)[1]
    call, calls = failing.call, 0

    def fails(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        logits = call(*arguments)
        if calls in (9, 10):
            raise RuntimeError("broken")
        return logits

    monkeypatch.setattr(failing, "call", fails)
    (out,) = engine.generate_batch([PROMPTS[1]], max_tokens=MOST)
    monkeypatch.setattr(failing, "call", call)
    assert calls >= 9
    assert out.tokens == expected[: len(out.tokens)]
    assert (out.error is None) == (whose == "draft")
    assert (out.drafter_error is None) == (whose == "target")
    assert engine.generate(PROMPTS[1], max_tokens=MOST).tokens == expected


@pytest.mark.parametrize("whose", ["transformers", "llama.cpp"])
def test_one_backend_drafts_for_the_other(whose: str, tmp_path: Path) -> None:
    """The same file under both, one as the target and one as its draft: the text is the target's."""
    path = gguf_file.write_llama(tmp_path / "tiny.gguf")
    torch_model, llama_model = load(f"transformers:{path}", dtype="float32"), load(path)
    model, draft = (torch_model, llama_model) if whose == "transformers" else (llama_model, torch_model)
    expected = Engine(model, NullDrafter(), sampler=GREEDY).generate([5, 6, 7], max_tokens=30)
    drafter = ModelDrafter(draft)
    out = Engine(model, drafter, sampler=GREEDY, num_draft_tokens=4).generate([5, 6, 7], max_tokens=30)
    assert drafter.mode == "same"
    assert out.tokens == expected.tokens
    assert (out.counts.draft_acceptance_rate or 0.0) > 0.8
    llama_model.close()
