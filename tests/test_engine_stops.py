"""Stops inside a block, caps, text, logprobs, counts: each as plain decoding would have it."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.draft import NullDrafter
from draftproof.engine import Engine
from draftproof.errors import PromptTooLongError, UsageError
from draftproof.models.toy import ToyModel
from draftproof.request import Request
from draftproof.sampling import Sampler
from draftproof.types import Completion
from tests.doubles import FunctionDrafter, oracle_drafter, scripted_model

GREEDY = Sampler(temperature=0)
PIECES = [b"zero ", b"one ", b"two ", b"three ", b"four ", b"five ", b"six ", b"seven ", b"ST", b"OP!x"]


def block_engine(model: ToyModel, k: int = 8) -> Engine:
    return Engine(model, oracle_drafter(model), sampler=GREEDY, num_draft_tokens=k)


def plain(model: ToyModel, prompt: list[int], **options: object) -> Completion:
    return Engine(model, NullDrafter(), sampler=GREEDY).generate(prompt, **options)


def same(found: Completion, expected: Completion) -> None:
    assert (found.tokens, found.text, found.finish_reason) == (expected.tokens, expected.text, expected.finish_reason)
    assert found.usage == expected.usage
    assert found.logprobs == expected.logprobs


@pytest.mark.parametrize(("stop", "text", "count"), [("STOP", "one two ", 4), ("OP!", "one two ST", 4)])
def test_a_stop_string_cuts_text_tokens_and_logprobs_at_the_same_token(stop: str, text: str, count: int) -> None:
    model = scripted_model([1, 2, 8, 9, 4, 5, 6, 7], 1, 10, pieces=PIECES)
    engine = block_engine(model)
    found = engine.generate([0], stop=[stop], logprobs=3, max_tokens=20)
    assert (found.text, found.tokens, found.finish_reason) == (text, [1, 2, 8, 9][:count], "stop")
    assert len(found.logprobs or []) == found.usage.completion_tokens == count
    assert "".join(step.text for step in engine.stream([0], stop=[stop], max_tokens=20)) == text
    same(found, plain(model, [0], stop=[stop], logprobs=3, max_tokens=20))


def test_the_stop_string_may_be_kept() -> None:
    model = scripted_model([1, 2, 8, 9, 4], 1, 10, pieces=PIECES)
    assert block_engine(model).generate([0], stop="STOP", include_stop=True, max_tokens=20).text == "one two STOP"


@pytest.mark.parametrize(("cap", "tokens", "reason"), [(4, [1, 8], "stop"), (2, [1, 8], "stop"), (1, [1], "length")])
def test_a_stop_before_or_at_the_cap_is_a_stop(cap: int, tokens: list[int], reason: str) -> None:
    model = scripted_model([1, 8, 2, 3, 4, 5, 6], 1, 10, pieces=PIECES)
    found = block_engine(model, 16).generate([0], stop="ST", max_tokens=cap)
    assert (found.tokens, found.finish_reason) == (tokens, reason)
    same(found, plain(model, [0], stop="ST", max_tokens=cap))


def test_a_stop_beyond_the_cap_is_a_length() -> None:
    model = scripted_model([1, 2, 3, 4, 5, 8, 6], 1, 10, pieces=PIECES)
    found = block_engine(model, 16).generate([0], stop="ST", max_tokens=4)
    assert (found.tokens, found.finish_reason) == ([1, 2, 3, 4], "length")


def test_a_stop_is_found_early_in_a_long_block_and_over_two_blocks() -> None:
    model = scripted_model([1, 8, 9, *([2, 3, 4, 5] * 4)], 1, 10, pieces=PIECES)
    assert block_engine(model, 16).generate([0], stop="STOP", max_tokens=40).text == "one "
    halves = FunctionDrafter(lambda tokens: [1, 8][: max(0, 2 - len(tokens) + 1)])
    engine = Engine(model, halves, sampler=GREEDY, num_draft_tokens=1)
    steps = list(engine.stream([0], stop="STOP", max_tokens=40))
    assert "".join(step.text for step in steps) == "one "
    assert steps[-1].finish_reason == "stop"


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("place", range(9))
def test_an_end_of_sequence_ends_the_text_wherever_it_falls_in_a_block(k: int, place: int) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2]
    text[place] = 9
    model = scripted_model(text, 1, 12, eos_ids=[9, 10])
    engine = block_engine(model, k)
    found = engine.generate([0], max_tokens=30)
    assert found.tokens == text[: place + 1]
    assert found.finish_reason == "stop"
    assert sum(len(step.tokens) for step in engine.stream([0], max_tokens=30)) == place + 1
    same(found, plain(model, [0], max_tokens=30))
    assert engine.generate([0], max_tokens=30, ignore_eos=True).usage.completion_tokens == 30


def test_stop_token_ids_end_the_text_too() -> None:
    model = scripted_model([1, 2, 3, 4], 1, 6)
    found = block_engine(model).generate([0], stop_token_ids=[3], max_tokens=30)
    assert (found.tokens, found.finish_reason) == ([1, 2, 3], "stop")


@pytest.mark.parametrize("drafter", ["none", "ngram", "suffix"])
@pytest.mark.parametrize("cap", [0, 1, 2, 3, 5, 17, 20])
def test_exactly_max_tokens_are_delivered_counted_and_reported(drafter: str, cap: int) -> None:
    model = scripted_model([1, 2], 6, 4)
    engine = Engine(model, drafter, sampler=GREEDY, num_draft_tokens=4)
    found = engine.generate([1, 2, 1, 2, 1, 2], max_tokens=cap, logprobs=0)
    assert found.tokens == ([1, 2] * 10)[:cap]
    assert found.usage.completion_tokens == len(found.logprobs or []) == found.counts.num_emitted_tokens == cap
    assert found.finish_reason == "length"
    assert found.counts.num_accepted_tokens <= cap


def test_max_tokens_0_calls_no_model() -> None:
    def table(tokens: np.ndarray) -> np.ndarray:
        raise AssertionError("the model was called")

    found = Engine(ToyModel(table, 4), "none").generate([1], max_tokens=0)
    assert (found.tokens, found.text, found.finish_reason) == ([], "", "length")


@pytest.mark.parametrize("drafter", ["none", "suffix", "ngram"])
def test_the_context_ends_the_text(drafter: str) -> None:
    model = scripted_model([1, 2, 3], 42, 4, context_length=48)
    found = Engine(model, drafter, sampler=GREEDY, num_draft_tokens=8).generate([1, 2, 3] * 14)
    assert (len(found.tokens), found.finish_reason) == (6, "length")
    with pytest.raises(PromptTooLongError, match="48"):
        Engine(model, drafter).generate([1] * 48)


@pytest.mark.parametrize("sampler", [GREEDY, Sampler(temperature=0.7, top_p=0.8, presence_penalty=0.4)])
@pytest.mark.parametrize("k", [1, 4])
def test_logprobs_are_the_teacher_forced_ones_of_the_raw_logits(sampler: Sampler, k: int) -> None:
    model = ToyModel.random(12, seed=3, order=2)
    engine = Engine(model, oracle_drafter(model, wrong_every=3), sampler=sampler, num_draft_tokens=k)
    found = engine.generate([1, 2], seed=1, max_tokens=25, logprobs=5)
    assert found.logprobs is not None
    for i, entry in enumerate(found.logprobs):
        law = np.log(model.law([1, 2, *found.tokens[:i]]))
        assert entry.token == found.tokens[i]
        assert entry.logprob == pytest.approx(law[entry.token], abs=1e-12)
        best = np.argsort(-law)[:5]
        assert [token for token, _ in entry.top] == best.tolist()
        assert [value for _, value in entry.top] == pytest.approx(law[best].tolist(), abs=1e-12)


def test_counts_leave_out_what_a_stop_cut_off() -> None:
    model = scripted_model([1, 9, 3, 4, 5], 1, 12, eos_ids=[9])
    found = block_engine(model, 4).generate([0], max_tokens=30)
    counts = found.counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (1, 4, 2)
    assert counts.mean_acceptance_length == 2.0
    assert counts.acceptance_histogram == [0, 0, 1, 0, 0]
    assert counts.num_accepted_tokens_per_pos == [1, 1, 0, 0]
    assert found.usage.completion_tokens == 2


def test_only_drafts_that_were_verified_are_counted() -> None:
    model = scripted_model([1, 2, 3, 4, 5, 6], 1, 12)
    right = oracle_drafter(model)

    def propose(tokens: np.ndarray) -> list[int]:
        guess = list(right.propose(tokens))[:4]
        return [*guess[:3], (guess[3] + 1) % 12] if len(tokens) in (4, 9) else []

    found = Engine(model, FunctionDrafter(propose), sampler=GREEDY, num_draft_tokens=4).generate([0], max_tokens=16)
    counts = found.counts
    assert (counts.num_passes, counts.num_drafts) == (10, 2)
    assert (counts.num_draft_tokens, counts.num_accepted_tokens, counts.draft_acceptance_rate) == (8, 6, 0.75)
    none = Engine(model, "none", sampler=GREEDY).generate([0], max_tokens=5).counts
    assert none.draft_acceptance_rate is None
    assert none.mean_acceptance_length is None


def test_half_a_character_comes_once_at_the_end() -> None:
    smile = "😀".encode()
    model = scripted_model([0, 1, 2, 0], 1, 3, pieces=[smile[:2], smile[2:], b"ok"])
    steps = list(block_engine(model, 3).stream([2], max_tokens=4))
    assert "".join(step.text for step in steps) == "😀ok�"
    assert "�" not in "".join(step.text for step in steps[:-1])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_tokens": -1}, "max_tokens -1"),
        ({"stop": ""}, "stop ''"),
        ({"logprobs": -2}, "logprobs -2"),
        ({"seed": "x"}, "seed 'x'"),
        ({"max_token": 3}, "'max_token' is unknown"),
        ({"sampler": Sampler(logit_bias={99: 1.0})}, "logit_bias"),
        ({"sampler": Sampler(logit_bias={10**20: 1.0})}, "logit_bias"),
        ({"sampler": {"temperature": 0.5}}, "sampler"),
        ({"max_tokens": 2.5}, "max_tokens 2.5"),
        ({"max_tokens": "5"}, "max_tokens '5'"),
        ({"logprobs": 1.5}, "logprobs 1.5"),
        ({"stop": [1]}, "stop"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_refused_at_the_call(options: dict[str, object], match: str) -> None:
    engine = Engine(scripted_model([1], 1, 4), "none")
    with pytest.raises(UsageError, match=match):
        engine.stream([1], **options)


@pytest.mark.parametrize(
    "prompt",
    [
        *([], [99], [-1], [1.5], [True], "", "?", [{"role": "user"}], None, 3, b"ab", [2**31]),
        *(np.array([0.5]), np.array([2**32 + 1]), np.array([[1, 2], [2, 1]])),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(UsageError):
        Engine(scripted_model([1], 1, 4), "none").generate(prompt)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_no_stop_is_no_stop() -> None:
    engine = Engine(scripted_model([1, 2, 3], 1, 4), "none", sampler=GREEDY)
    assert engine.generate([0], stop=None, stop_token_ids=None, max_tokens=3).tokens == [1, 2, 3]
    assert engine.generate([0], stop=(text for text in ["b"]), max_tokens=3).finish_reason == "stop"


@pytest.mark.parametrize("context_length", [20, 40, 64, 66, 200])
def test_a_short_context_can_be_prepared(context_length: int) -> None:
    model = scripted_model([1, 2, 3], 1, 4, context_length=context_length)
    engine = Engine(model, "suffix", sampler=GREEDY)
    engine.prepare()
    assert engine.generate([0], max_tokens=6).tokens == [1, 2, 3, 1, 2, 3]


def test_a_request_object_takes_options_where_it_is_silent() -> None:
    engine = Engine(scripted_model([1, 2, 3], 1, 4), "none", sampler=GREEDY)
    found = engine.generate_batch([Request([0], max_tokens=2), [0]], max_tokens=5)
    assert [len(each.tokens) for each in found] == [2, 5]
    with pytest.raises(UsageError, match="one string"):
        engine.generate_batch("abc")
