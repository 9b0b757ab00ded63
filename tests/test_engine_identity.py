"""Greedy and coupled text equals plain decoding, token for token: any drafter, any draft length, any processing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from draftproof.draft import Drafter, ModelDrafter, NgramDrafter, NullDrafter, SuffixDrafter
from draftproof.engine import Engine
from draftproof.models.toy import ToyModel
from draftproof.request import Request
from draftproof.sampling import Sampler
from draftproof.types import Tokens
from tests.doubles import FunctionDrafter, constant_drafter, oracle_drafter, random_drafter

TARGET = ToyModel.random(9, seed=11, order=2, spread=1.5, eos_ids=[8])
LOOPING = ToyModel.random(9, seed=12, order=1, spread=3.0)

DRAFTERS: dict[str, Callable[[ToyModel], Drafter]] = {
    "null": lambda target: NullDrafter(),
    "ngram": lambda target: NgramDrafter(),
    "suffix": lambda target: SuffixDrafter(),
    "suffix with memory": lambda target: SuffixDrafter(memory_tokens=200),
    "model": lambda target: ModelDrafter(ToyModel.random(9, seed=11, order=2, spread=1.5, mix=0.3)),
    "self": lambda target: ModelDrafter(target),
    "constant": lambda target: constant_drafter(3),
    "random": lambda target: random_drafter(9),
    "oracle": lambda target: oracle_drafter(target),
    "oracle, at times wrong": lambda target: oracle_drafter(target, wrong_every=4),
}

SAMPLERS = {
    "greedy": Sampler(temperature=0),
    "greedy, presence penalty": Sampler(temperature=0, presence_penalty=1.5),
    "greedy, frequency penalty": Sampler(temperature=0, frequency_penalty=0.7),
    "greedy, repetition penalty": Sampler(temperature=0, repetition_penalty=1.3),
    "untruncated": Sampler(),
    "top-p and min-p": Sampler(temperature=0.8, top_p=0.9, min_p=0.05),
    "top-k": Sampler(temperature=1.3, top_k=3),
    "bias, bans, penalties": Sampler(
        logit_bias={2: 1.5, 4: -100.0}, banned_token_ids=[1], presence_penalty=0.5, frequency_penalty=0.4, min_tokens=5
    ),
    "allowed ids only": Sampler(allowed_token_ids=[0, 3, 5, 8], repetition_penalty=1.2),
}


def alternating(tokens: Tokens, logits: np.ndarray) -> np.ndarray:
    """A processor that depends on the whole history: it bans the last token, and every even id at odd lengths."""
    logits[tokens[-1]] = -np.inf
    if len(tokens) % 2:
        logits[::2] -= 2.0
    return logits


@pytest.mark.parametrize("length", [1, 2, 5, 16, "auto"])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("target", [TARGET, LOOPING], ids=["toy", "looping toy"])
def test_coupled_text_is_plain_text(target: ToyModel, drafter: str, length: int) -> None:
    for name, sampler in {**SAMPLERS, "processor": Sampler(processors=[alternating])}.items():
        plain = Engine(target, NullDrafter(), "coupled", sampler)
        engine = Engine(target, DRAFTERS[drafter](target), "coupled", sampler, length)
        for seed in (1, 2):
            request = Request([0, 1, 2, 0, 1], seed=seed, max_tokens=24, stop=("dd", "abca"), logprobs=2)
            expected, found = plain.generate(request), engine.generate(request)
            assert found.tokens == expected.tokens, name
            assert found.text == expected.text, name
            assert found.finish_reason == expected.finish_reason, name
            assert found.logprobs == expected.logprobs, name
            assert found.usage.completion_tokens == expected.usage.completion_tokens, name


@pytest.mark.parametrize("rule", ["token", "coupled"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_text_is_plain_text_under_every_rule(rule: str, drafter: str) -> None:
    for name, sampler in SAMPLERS.items():
        if not sampler.greedy:
            continue
        expected = Engine(TARGET, NullDrafter(), sampler=sampler).generate([0, 1, 2], max_tokens=40)
        engine = Engine(TARGET, DRAFTERS[drafter](TARGET), rule, sampler, 4)
        assert engine.generate([0, 1, 2], max_tokens=40).tokens == expected.tokens, name


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_seeded_request_is_the_same_alone_and_among_seven_others(drafter: str) -> None:
    sampler = Sampler(temperature=0.9, top_p=0.95)
    alone = Engine(TARGET, NullDrafter(), sampler=sampler).generate([4, 4, 1], seed=5, max_tokens=30)
    engine = Engine(TARGET, DRAFTERS[drafter](TARGET), sampler=sampler)
    others = [Request([i % 8, 2, 1], seed=100 + i, max_tokens=5 * i) for i in range(7)]
    together = engine.generate_batch([*others[:3], Request([4, 4, 1], seed=5, max_tokens=30), *others[3:]])
    assert together[3].tokens == alone.tokens
    assert engine.generate([4, 4, 1], seed=5, max_tokens=30).tokens == alone.tokens


def test_a_seed_goes_with_the_coupled_rule_unless_one_is_named() -> None:
    drafter = ModelDrafter(TARGET)
    assert Engine(TARGET, drafter).generate([1], seed=1, max_tokens=2).rule == "coupled"
    assert Engine(TARGET, drafter).generate([1], max_tokens=2).rule == "block"
    assert Engine(TARGET, drafter, "token").generate([1], seed=1, max_tokens=2).rule == "token"
    assert Engine(TARGET, "suffix").generate([1], max_tokens=2).rule == "coupled"


def test_the_token_rule_repeats_a_seeded_text_at_a_fixed_length_with_the_same_drafts() -> None:
    engine = Engine(TARGET, ModelDrafter(TARGET), "token", num_draft_tokens=3)
    first = engine.generate([1, 2], seed=9, max_tokens=30).tokens
    engine.generate([3], max_tokens=7)
    assert engine.generate([1, 2], seed=9, max_tokens=30).tokens == first


def test_unseeded_requests_differ_and_a_seed_reported_gives_the_text_again() -> None:
    engine = Engine(TARGET, "suffix")
    runs = [engine.generate([1, 2], max_tokens=12) for _ in range(20)]
    assert len({tuple(run.tokens) for run in runs}) > 1
    again = engine.generate([1, 2], max_tokens=12, seed=runs[0].seed)
    assert again.tokens == runs[0].tokens


def test_rounds_without_drafts_use_up_no_randomness() -> None:
    expected = Engine(TARGET, "none").generate([1], seed=4, max_tokens=30).tokens
    engine = Engine(TARGET, FunctionDrafter(lambda tokens: [2, 2] if len(tokens) % 3 else []), num_draft_tokens=2)
    assert engine.generate([1], seed=4, max_tokens=30).tokens == expected


def test_a_batch_seed_gives_each_prompt_its_own() -> None:
    engine = Engine(LOOPING, "none")
    both = engine.generate_batch([[1, 2], [1, 2]], seed=7, max_tokens=20)
    assert [each.seed for each in both] == [(7, 0), (7, 1)]
    assert both[0].tokens != both[1].tokens
    assert engine.generate([1, 2], seed=(7, 1), max_tokens=20).tokens == both[1].tokens


def test_continuing_after_a_stop_goes_on_with_the_same_text() -> None:
    engine = Engine(LOOPING, random_drafter(9), num_draft_tokens=5)
    whole = engine.generate([1, 2], seed=3, max_tokens=20)
    head = engine.generate([1, 2], seed=3, max_tokens=7)
    tail = engine.generate([1, 2, *head.tokens], seed=3, max_tokens=20 - len(head.tokens))
    assert head.tokens + tail.tokens == whole.tokens
