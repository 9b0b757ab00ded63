"""The law of whole sequences through the engine, by enumeration: every branch of every coin, nothing sampled."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.draft import Drafter, ModelDrafter
from draftproof.engine import Engine
from draftproof.models.toy import ToyModel
from draftproof.policy import PayingLength
from draftproof.request import Request
from draftproof.sampling import Sampler
from draftproof.types import Tokens, as_tokens
from tests.doubles import FunctionDrafter
from tests.laws import EXACT, BranchingNoise, enumerate_law
from tests.test_policy import Frozen, costs

Text = tuple[int, ...]

TARGET = ToyModel.random(3, seed=31, order=2, spread=1.0)
NEAR = ToyModel.random(3, seed=31, order=2, spread=1.0, mix=0.3)
FAR = ToyModel.random(3, seed=32, order=2, spread=2.0)
ENDING = ToyModel.random(3, seed=33, order=1, spread=1.0, eos_ids=[2])


def no_repeat(tokens: Tokens, logits: np.ndarray) -> np.ndarray:
    """A processor that sees the whole history: a token seen twice running becomes unlikely."""
    if len(tokens) > 1 and tokens[-1] == tokens[-2]:
        logits[tokens[-1]] -= 1.5
    return logits


SAMPLERS = {
    "plain": Sampler(),
    "warm": Sampler(temperature=0.7),
    "top-k": Sampler(top_k=2),
    "top-p": Sampler(top_p=0.8),
    "penalties": Sampler(presence_penalty=0.8, frequency_penalty=0.5, repetition_penalty=1.2, logit_bias={1: 0.4}),
    "processor": Sampler(processors=[no_repeat]),
}


def engine_law(engine: Engine, request: Request, monkeypatch: pytest.MonkeyPatch) -> dict[Text, float]:
    """Returns the exact law of the generated tokens."""

    def run(noise: BranchingNoise) -> Text:
        noise.seed = 0  # type: ignore[attr-defined]
        monkeypatch.setattr("draftproof.running.CounterNoise", lambda seed: noise)
        return tuple(engine.generate(request).tokens)

    return enumerate_law(run)


def target_law(model: ToyModel, prompt: list[int], sampler: Sampler, count: int) -> dict[Text, float]:
    """Returns the law of plain sampling from the model, up to `count` tokens or its end of sequence."""
    bound = sampler.bind(len(prompt), model.eos_ids, model.vocab_size)
    laws: dict[Text, float] = {(): 1.0}
    for _ in range(count):
        longer: dict[Text, float] = {}
        for text, mass in laws.items():
            if text and text[-1] in model.eos_ids:
                longer[text] = mass
                continue
            history = as_tokens([*prompt, *text])
            for token, p in enumerate(bound.law(history, model.table(history)).dense(model.vocab_size)):
                if p > 0:
                    longer[(*text, token)] = mass * float(p)
        laws = longer
    return laws


def distance(ours: dict[Text, float], target: dict[Text, float]) -> float:
    """Returns the largest difference of a probability."""
    return max(abs(ours.get(text, 0.0) - target.get(text, 0.0)) for text in {*ours, *target})


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("draft_model", [NEAR, FAR, TARGET], ids=["near", "far", "itself"])
def test_sampled_drafts_leave_the_law_of_three_tokens_exact(
    draft_model: ToyModel, sampler: str, k: int, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(TARGET, ModelDrafter(draft_model), rule, SAMPLERS[sampler], k)
    ours = engine_law(engine, Request([0, 1], max_tokens=3), monkeypatch)
    assert math.isclose(sum(ours.values()), 1.0, abs_tol=EXACT)
    assert distance(ours, target_law(TARGET, [0, 1], SAMPLERS[sampler], 3)) < EXACT


@pytest.mark.parametrize("draft_sampler", [Sampler(temperature=0), Sampler(top_k=2), Sampler(temperature=2.5)])
def test_a_draft_law_of_its_own_changes_speed_only(draft_sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(TARGET, ModelDrafter(NEAR, draft_sampler), "token", num_draft_tokens=2)
    ours = engine_law(engine, Request([0, 1], max_tokens=4), monkeypatch)
    assert distance(ours, target_law(TARGET, [0, 1], Sampler(), 4)) < EXACT


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("guess", [[0, 0, 0], [1, 2, 1], [2, 0, 1]])
def test_deterministic_drafts_under_rules_for_ratios(
    rule: str, guess: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter: Drafter = FunctionDrafter(lambda tokens: guess[len(tokens) % 3 :] + guess)
    engine = Engine(TARGET, drafter, rule, Sampler(temperature=0.8), 3)
    ours = engine_law(engine, Request([0, 1], max_tokens=4), monkeypatch)
    assert distance(ours, target_law(TARGET, [0, 1], Sampler(temperature=0.8), 4)) < EXACT


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_holds_where_texts_end(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ENDING, ModelDrafter(ToyModel.random(3, seed=33, order=1, mix=0.4, eos_ids=[2])), rule, None, 3)
    ours = engine_law(engine, Request([0], max_tokens=4), monkeypatch)
    assert distance(ours, target_law(ENDING, [0], Sampler(), 4)) < EXACT
    held = Sampler(min_tokens=2)
    engine = Engine(ENDING, ModelDrafter(ENDING), rule, held, 3)
    ours = engine_law(engine, Request([0], max_tokens=4), monkeypatch)
    assert distance(ours, target_law(ENDING, [0], held, 4)) < EXACT


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_holds_while_the_length_adapts(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Costs are frozen, so that the length depends on past outcomes alone, as the theorem on early stopping asks.
    curve = costs({1: 1.0, 2: 1.2, 3: 1.3, 4: 1.6, 5: 2.0})
    engine = Engine(TARGET, ModelDrafter(NEAR), rule)
    engine.policy = Frozen(curve)
    assert isinstance(engine.policy, PayingLength)
    ours = engine_law(engine, Request([0, 1], max_tokens=5), monkeypatch)
    assert distance(ours, target_law(TARGET, [0, 1], Sampler(), 5)) < EXACT


def completions_law(
    engine: Engine, prompt: list[int], count: int, monkeypatch: pytest.MonkeyPatch
) -> dict[Text, float]:
    """Returns the law of the tokens of requests that may fail; -1 at the end stands for a failure."""

    def run(noise: BranchingNoise) -> Text:
        noise.seed = 0  # type: ignore[attr-defined]
        monkeypatch.setattr("draftproof.running.CounterNoise", lambda seed: noise)
        (completion,) = engine.generate_batch([prompt], max_tokens=count)
        return (*completion.tokens, *([-1] if completion.finish_reason == "error" else []))

    return enumerate_law(run)


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_the_law_holds_up_to_a_row_that_is_no_law(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ToyModel(lambda tokens: np.full(3, np.nan) if len(tokens) == 4 else TARGET.table(tokens), 3)
    engine = Engine(broken, ModelDrafter(NEAR), rule, num_draft_tokens=2)
    ours = completions_law(engine, [0, 1], 5, monkeypatch)
    expected = {(*text, -1): mass for text, mass in target_law(TARGET, [0, 1], Sampler(), 2).items()}
    assert distance(ours, expected) < EXACT


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("k", [2, 3])
def test_a_broken_row_fails_the_texts_that_meet_it_and_no_others(
    rule: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The block rule reads rows beyond its cut: a draft that meets the broken row is not yet a text that does.
    def meets(text: Text) -> bool:
        return text[:2] == (2, 1)

    broken = ToyModel(lambda tokens: np.full(3, np.nan) if tokens.tolist() == [0, 1, 2, 1] else TARGET.table(tokens), 3)
    engine = Engine(broken, ModelDrafter(FAR), rule, num_draft_tokens=k)
    ours = completions_law(engine, [0, 1], 3, monkeypatch)
    plain = target_law(TARGET, [0, 1], Sampler(), 3)
    expected = {text: mass for text, mass in plain.items() if not meets(text)}
    expected[2, 1, -1] = math.fsum(mass for text, mass in plain.items() if meets(text))
    assert distance(ours, expected) < EXACT


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_draft_model_that_fails_at_some_texts_leaves_the_law_exact(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It fails after a drafted 2 and only then: dropping the 2 for that would bias the text.
    failing = ToyModel(lambda tokens: np.full(3, np.nan) if tokens[-1] == 2 else FAR.table(tokens), 3)
    engine = Engine(TARGET, ModelDrafter(failing), rule, num_draft_tokens=2)
    ours = engine_law(engine, Request([0, 1], max_tokens=4), monkeypatch)
    assert distance(ours, target_law(TARGET, [0, 1], Sampler(), 4)) < EXACT


def test_a_drafter_that_drops_a_token_for_its_own_value_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a length policy that looks at the token it drops biases the text."""

    class Dropping(ModelDrafter):
        def session(self, slots: int = 1):  # type: ignore[no-untyped-def]
            session = super().session(slots)
            propose = session.propose

            def dropping(proposals):  # type: ignore[no-untyped-def]
                drafts = propose(proposals)
                return [d.cut(0) if len(d) and d.law(0).prob(int(d.tokens[0])) < 0.4 else d for d in drafts]

            session.propose = dropping  # type: ignore[method-assign]
            return session

    engine = Engine(TARGET, Dropping(FAR), "token", num_draft_tokens=2)
    ours = engine_law(engine, Request([0, 1], max_tokens=3), monkeypatch)
    assert distance(ours, target_law(TARGET, [0, 1], Sampler(), 3)) > 0.005
