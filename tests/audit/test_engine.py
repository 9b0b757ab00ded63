"""Audits of engines: real ones with known bugs on toy pairs, exact ones, greedy ones, and engines that fail."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

import draftproof as dp
from draftproof.audit import Report, Verdict, check_engine
from draftproof.audit.faulty import FAULTY_DRAFTERS, FaultyRule
from draftproof.audit.faulty_loop import FAULTS, FaultyLoop
from draftproof.audit.laws import TWICE
from draftproof.audit.martingale import EDGE
from draftproof.audit.zoo import BUGS
from draftproof.errors import UsageError
from draftproof.models.toy import ToyTokenizer
from draftproof.types import Tokens

# Thousands of tokens a test: the run-time checks would take most of the time. Small audits are checked in test_audit.
pytestmark = pytest.mark.usefixtures("unchecked")

VOCAB = 8
TARGET = dp.ToyModel.random(VOCAB, seed=3, order=2, spread=1.2)
DRAFT = dp.ToyModel.random(VOCAB, seed=3, order=2, spread=1.2, mix=0.35)
PROMPTS = [[1], [2, 3], [4, 5, 6]]

RULES = {bug.name: bug for bug in BUGS}


def audited(engine: dp.Engine, tokens: int = 3000, **options: object) -> Report:
    return check_engine(engine, prompts=PROMPTS, tokens=tokens, **options)  # type: ignore[arg-type]


def an_engine(
    rule: dp.Rule | str = "auto", drafter: dp.Drafter | str | None = None, k: int = 4, **law: float
) -> dp.Engine:
    return dp.Engine(TARGET, drafter or dp.ModelDrafter(DRAFT), rule, dp.Sampler(**law), k)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["token", "block", "coupled", "match"])
def test_exact_engines_pass(rule: str) -> None:
    report = audited(an_engine(rule), tokens=500)
    assert report.verdict is Verdict.NO_EVIDENCE, report
    assert report.numbers["tokens"] == 500
    assert report.numbers["e_value"] < 1000


@pytest.mark.parametrize("drafter", ["suffix", "ngram", "none"])
def test_lookups_pass(drafter: str) -> None:
    report = audited(an_engine(drafter=drafter, temperature=0.8, top_p=0.9), tokens=500)
    assert report.verdict is not Verdict.NOT_EXACT, report
    assert report.numbers["tokens"] == 500


# Far from its target, so that most bugs show within some hundred tokens.
FAR = dp.ToyModel.random(VOCAB, seed=3, order=2, spread=1.2, mix=0.68)
BONUS = "the bonus token comes from the row before"
ABSOLUTE = "the residual is |p - q|"

# Block verification by the token rule's residual changes single tokens too little: it needs the audit of the rule.
SEEN = {name: bug for name, bug in RULES.items() if name != "block verification recovers by the token rule"}


@pytest.mark.parametrize("name", SEEN)
def test_an_engine_with_a_faulty_rule_is_found_and_named(name: str) -> None:
    # A bonus token needs drafts that are accepted to the end.
    engine = an_engine(FaultyRule(RULES[name], VOCAB), dp.ModelDrafter(DRAFT if name == BONUS else FAR))
    report = audited(engine, tokens=12_000, alpha=0.01, naming=300)
    assert report.verdict is Verdict.NOT_EXACT
    finding = report.findings[0]
    assert finding.e_value is not None
    assert finding.e_value >= 100
    assert report.numbers["tokens"] <= report.numbers["tokens_for_the_name"]
    # min(p, q) + |p - q| / 2 is (p + q) / 2, which is also what half an unchecked draft gives.
    assert report.family == RULES[name].family or (name, report.family) == (ABSOLUTE, "acceptance")


@pytest.mark.parametrize("name", FAULTY_DRAFTERS)
def test_an_engine_with_a_faulty_drafter_is_found_and_named(name: str) -> None:
    family, spoil = FAULTY_DRAFTERS[name]
    engine = an_engine("token", spoil(dp.ModelDrafter(FAR)))
    report = audited(engine, tokens=12_000, alpha=0.01, naming=300, drafter=dp.ModelDrafter(FAR))
    assert report.verdict is Verdict.NOT_EXACT
    assert report.family == family
    assert report.findings[0].witness["telling places"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_loop_with_a_fault_between_rule_and_sampler_is_found(fault: str) -> None:
    family, sampler = FAULTS[fault]
    draft = DRAFT if fault == TWICE else FAR
    # The token before a draft is seldom the last where drafts are long.
    loop = FaultyLoop(TARGET, draft, fault, 1 if fault == TWICE else 4)
    report = check_engine(
        loop, target=TARGET, drafter=draft, sampler=sampler, prompts=PROMPTS, tokens=12_000, alpha=0.01, naming=300
    )
    assert report.verdict is Verdict.NOT_EXACT
    assert report.family == family or fault == TWICE


def test_the_search_for_a_name_changes_no_evidence_and_may_fail() -> None:
    engine = an_engine(FaultyRule(RULES["accepts everything"], VOCAB), dp.ModelDrafter(FAR))
    at_once, named = (audited(engine, naming=naming) for naming in (0, 200))
    assert at_once.numbers["tokens_for_the_name"] == at_once.numbers["tokens"] == named.numbers["tokens"]
    assert named.numbers["tokens_for_the_name"] == 200
    assert at_once.numbers["e_value"] == named.numbers["e_value"]
    assert at_once.power == named.power

    def tires(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        if seed == 3:
            raise RuntimeError("the server has gone")
        return engine.generate(prompt, max_tokens=max_tokens, seed=seed).tokens

    cut = check_engine(tires, target=TARGET, drafter=FAR, prompts=PROMPTS)
    assert cut.verdict is Verdict.NOT_EXACT
    assert cut.numbers["tokens_for_the_name"] == 3 * 64
    assert cut.numbers["tokens"] == at_once.numbers["tokens"]


def test_greedy_engines() -> None:
    assert audited(an_engine(temperature=0.0), tokens=200).verdict is Verdict.NO_EVIDENCE
    everything = FaultyRule(RULES["accepts everything"], VOCAB)
    report = audited(an_engine(everything, temperature=0.0), tokens=400)
    assert report.verdict is Verdict.NOT_EXACT
    assert report.findings[0].witness["its lead, logits"] > 0


def test_a_token_outside_the_nucleus_is_enough() -> None:
    def untruncated(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        return dp.Engine(TARGET, "none").generate(prompt, max_tokens=max_tokens, seed=seed).tokens

    report = check_engine(untruncated, target=TARGET, sampler=dp.Sampler(top_p=0.5), prompts=PROMPTS, tokens=2000)
    assert report.verdict is Verdict.NOT_EXACT
    assert "probability 0" in report.summary
    assert report.numbers["tokens"] < 50


@pytest.mark.parametrize("heat", [0.85, 1.15])
def test_another_temperature_is_found_also_with_tolerance(heat: float) -> None:
    engine = dp.Engine(TARGET, "none", sampler=dp.Sampler(temperature=heat))

    def warm(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        return engine.generate(prompt, max_tokens=max_tokens, seed=seed).tokens

    report = check_engine(warm, target=TARGET, prompts=PROMPTS, tokens=12_000, noise=0.02, alpha=0.01, naming=0)
    assert report.verdict is Verdict.NOT_EXACT


FLAT = dp.ToyModel.random(VOCAB, seed=3, order=2, spread=0.5)
"""Its tokens are nearly equal: every tenth is at the edge of a nucleus."""


def test_noise_of_the_tolerated_size_raises_no_alarm() -> None:
    rng = np.random.default_rng(0)

    def noisy(tokens: Tokens) -> np.ndarray:
        return FLAT.table(tokens) + 0.02 * rng.standard_normal(VOCAB)

    engine = dp.Engine(dp.ToyModel(noisy, VOCAB), dp.ModelDrafter(DRAFT), "token", dp.Sampler(top_p=0.6), 3)
    for seed in range(2):
        report = check_engine(engine, target=FLAT, prompts=PROMPTS, tokens=500, noise=0.02, seed=1000 * seed)
        assert report.verdict is Verdict.NO_EVIDENCE, report
        assert report.numbers["tokens_at_the_edge"] > 30
    strict = check_engine(engine, target=FLAT, prompts=PROMPTS, tokens=2000)
    assert strict.verdict is Verdict.NOT_EXACT
    assert "probability 0" in strict.summary


WIDE = 2000
TAILED = dp.ToyModel(lambda _: np.append(np.log(np.arange(1.0, 21.0)), np.full(WIDE - 20, -8.0)), WIDE)
"""Of its ids nearly all are less likely than one in a hundred thousand each: together, some 3 in 1000."""


def test_the_far_tail_of_a_large_vocabulary_is_no_evidence_but_for_its_mass() -> None:
    exact = audited(dp.Engine(TAILED, "none"), tokens=1500)
    assert exact.verdict is Verdict.NO_EVIDENCE
    assert 0 < exact.numbers["tokens_at_the_edge"] < 20

    def sloppy(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        rng = np.random.default_rng(seed)
        text = dp.Engine(TAILED, "none").generate(prompt, max_tokens=max_tokens, seed=seed).tokens
        return [int(rng.integers(20, WIDE)) if rng.random() < 0.1 else token for token in text]

    report = check_engine(sloppy, target=TAILED, prompts=PROMPTS, tokens=3000)
    assert report.verdict is Verdict.NOT_EXACT
    assert report.findings[0].witness["best bet"] == EDGE


def test_what_a_drafter_prefers_is_evidence_however_unlikely_to_the_target() -> None:
    row = np.full(WIDE, -30.0)
    row[100:110] = 0.0
    drafter = dp.ModelDrafter(dp.ToyModel(lambda _: row, WIDE))
    unchecked = FaultyRule(RULES["accepts everything"], WIDE)
    report = audited(dp.Engine(TAILED, drafter, unchecked), tokens=100)
    assert report.verdict is Verdict.NOT_EXACT
    assert report.numbers["tokens"] < 10
    assert report.likeliest_bug == "draft tokens are not checked"


def test_a_drafter_that_cannot_draft_is_told() -> None:
    others = [f"{i:02d}".encode() for i in range(VOCAB)]
    stranger = dp.ToyModel(DRAFT.table, VOCAB, tokenizer=ToyTokenizer(others), name="stranger")
    report = audited(an_engine("token"), tokens=200, drafter=dp.ModelDrafter(stranger))
    assert report.numbers["tokens_the_drafter_would_draft"] == 0
    assert "stranger" in report.summary
    assert "draft nothing" in report.summary
    usual = audited(an_engine("token"), tokens=200)
    assert usual.numbers["tokens_the_drafter_would_draft"] == 200
    assert "draft nothing" not in usual.summary


def test_the_same_seeds_give_the_same_report() -> None:
    first, second = (audited(an_engine("token"), tokens=150, seed=5) for _ in range(2))
    assert first.numbers["e_value"] == second.numbers["e_value"]


def test_evidence_is_kept_when_the_engine_fails() -> None:
    calls = iter(range(100))

    def tires(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        if next(calls) == 3:
            raise RuntimeError("the server has gone")
        return [0] * 5

    report = check_engine(tires, target=TARGET, prompts=PROMPTS, tokens=10_000, alpha=1e-30)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.verdict.exit_code == 3
    assert "the server has gone" in report.summary
    assert report.numbers["tokens"] == 15


def test_an_engine_that_gives_nothing_or_nonsense() -> None:
    nothing = check_engine(lambda p, m, s: [], target=TARGET, prompts=PROMPTS)
    assert nothing.verdict is Verdict.INCONCLUSIVE
    odd = check_engine(lambda p, m, s: [VOCAB + 1], target=TARGET, prompts=PROMPTS)
    assert odd.verdict is Verdict.NOT_EXACT
    assert "vocabulary" in odd.summary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 2.0}, "alpha 2.0"),
        ({"tokens": 0}, "tokens 0"),
        ({"noise": -1.0}, "noise -1.0"),
        ({"naming": -1}, "naming -1"),
        ({"prompts": []}, "prompts"),
        ({"prompts": "one"}, "prompts"),
        ({"target": None}, "target is missing"),
        ({"drafter": "odd"}, "drafter 'odd'"),
    ],
)
def test_wrong_usage(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_engine(lambda p, m, s: [0], **({"target": TARGET, "prompts": PROMPTS} | options))  # type: ignore[arg-type]


def test_power_is_told_and_grows() -> None:
    few, many = ({e.bug: e.power for e in audited(an_engine("token"), tokens=n).power} for n in (100, 800))
    assert many["draft tokens are not checked"] > 0.99
    assert few["the residual is p itself"] < many["the residual is p itself"]
    assert not math.isnan(sum(many.values()))


def test_the_same_text_for_another_seed_is_no_evidence() -> None:
    def unseeded(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        return dp.Engine(TARGET, "none").generate(prompt, max_tokens=max_tokens, seed=1).tokens

    report = check_engine(unseeded, target=TARGET, prompts=PROMPTS, tokens=5000)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "same text for another seed" in report.summary
    assert report.numbers["texts"] == len(PROMPTS) + 1


def test_what_is_returned_must_be_new_ids_and_no_more_than_asked() -> None:
    whole = check_engine(lambda p, m, s: [*p, *[0] * m], target=TARGET, prompts=PROMPTS)
    assert "begins with the prompt" in whole.summary
    more = check_engine(lambda p, m, s: [0] * (m + 3), target=TARGET, prompts=PROMPTS, max_tokens=8)
    assert "11 ids where at most 8" in more.summary


def test_an_interrupt_is_reported_with_what_was_seen() -> None:
    engine = dp.Engine(TARGET, "none")

    def interrupted(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        if seed == 3:
            raise KeyboardInterrupt
        return engine.generate(prompt, max_tokens=max_tokens, seed=seed).tokens

    report = check_engine(interrupted, target=TARGET, prompts=PROMPTS, max_tokens=10)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.numbers["tokens"] == 30


def test_too_few_tokens_are_inconclusive_and_power_goes_by_how_much_is_drafted() -> None:
    assert audited(an_engine("token"), tokens=10).verdict is Verdict.INCONCLUSIVE
    report = audited(an_engine("token", drafter="ngram"), tokens=600)
    assert 0.0 < report.numbers["share_of_tokens_a_bug_is_taken_to_act_on"] <= 0.7
    assert report.numbers["draft_tokens"] > 0


def test_an_engine_may_be_named() -> None:
    with pytest.raises(UsageError, match="nowhere"):
        check_engine("nowhere:f", target=TARGET, prompts=PROMPTS)


ENDING = dp.ToyModel(TARGET.table, VOCAB, eos_ids=[7])


@pytest.mark.parametrize("kept", [True, False])
def test_an_end_of_text_may_be_left_out(kept: bool) -> None:
    engine = dp.Engine(ENDING, dp.ModelDrafter(DRAFT), "token", None, 3)

    def generate(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        tokens = engine.generate(prompt, max_tokens=max_tokens, seed=seed).tokens
        return tokens if kept or tokens[-1] != 7 else tokens[:-1]

    report = check_engine(generate, target=ENDING, drafter=DRAFT, prompts=PROMPTS, tokens=600, seed=3)
    assert report.verdict is Verdict.NO_EVIDENCE, report


def test_greedy_text_under_noise_is_judged_by_the_noise() -> None:
    flat = dp.ToyModel.random(VOCAB, seed=3, order=3, spread=0.5)
    rng = np.random.default_rng(0)

    def noisy(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        text = prompt
        for _ in range(max_tokens):
            text = np.append(text, np.argmax(flat.table(text) + 0.02 * rng.standard_normal(VOCAB)).astype(np.int32))
        return list(text[len(prompt) :])

    options = {"target": flat, "sampler": dp.Sampler(temperature=0.0), "prompts": PROMPTS, "tokens": 900}
    assert check_engine(noisy, noise=0.02, **options).verdict is Verdict.NO_EVIDENCE  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "message"),
    [([True, False], "no ids"), (["a"], "no ids"), ([2**40], "vocabulary"), ([-1], "vocabulary"), (None, "no ids")],
)
def test_what_are_no_ids(answer: object, message: str) -> None:
    report = check_engine(lambda p, m, s: answer, target=TARGET, prompts=PROMPTS)  # type: ignore[arg-type,return-value]
    assert message in report.summary


def test_a_reference_that_fails_keeps_the_evidence() -> None:
    calls = iter(range(10**6))

    def breaks(tokens: Tokens) -> np.ndarray:
        return TARGET.table(tokens) * (np.nan if next(calls) > 40 else 1.0)

    report = check_engine(
        lambda p, m, s: [s % 3, 1, 2], target=dp.ToyModel(breaks, VOCAB), prompts=PROMPTS, max_tokens=3
    )
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the reference failed: RowError" in report.summary
    assert report.numbers["tokens"] > 20


def test_processors_and_lists_of_ids_go_with_an_audit() -> None:
    sampler = dp.Sampler(allowed_token_ids=np.arange(6), logit_bias={1: 1.0}, presence_penalty=0.3)
    engine = dp.Engine(TARGET, dp.ModelDrafter(DRAFT), "token", sampler, 3)
    assert check_engine(engine, prompts=PROMPTS, tokens=500).verdict is not Verdict.NOT_EXACT


def test_a_text_beyond_the_context_keeps_the_evidence() -> None:
    short = dp.ToyModel(TARGET.table, VOCAB, context_length=20)
    rng = np.random.default_rng(0)

    def generate(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        return list(rng.integers(0, 3, size=30))

    report = check_engine(generate, target=short, prompts=PROMPTS, alpha=1e-30)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "exceed the context" in report.summary
    assert report.numbers["tokens"] > 10
