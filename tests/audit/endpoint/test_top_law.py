"""What is concluded from the likeliest tokens alone must hold of the whole law, whatever the rest of it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
from draftproof.audit.endpoint.top_law import TopLaw, top_law

LAWS = [
    dp.Sampler(),
    dp.Sampler(temperature=0.7),
    dp.Sampler(temperature=1.4),
    dp.Sampler(top_k=3),
    dp.Sampler(top_k=3, temperature=0.5, top_p=0.8),
    dp.Sampler(top_k=8, temperature=1.5, top_p=0.8),
    dp.Sampler(top_p=0.6),
    dp.Sampler(top_p=0.6, temperature=0.6),
    dp.Sampler(top_p=0.6, temperature=1.6),
    dp.Sampler(min_p=0.2),
    dp.Sampler(min_p=0.05, temperature=1.3, top_p=0.9),
]


def told(logits: np.ndarray, count: int) -> dict[int | str, float]:
    logprobs = logits - np.logaddexp.reduce(logits)
    return {int(i): float(logprobs[i]) for i in np.argsort(-logprobs, kind="stable")[:count]}


def holds(law: TopLaw, logits: np.ndarray, sampler: dp.Sampler) -> None:
    whole = sampler.bind(0, (), len(logits)).law(np.zeros(0, dtype=np.int32), logits).dense(len(logits))
    mine = whole[np.array(law.keys)]
    assert (mine > 0.0).all()
    assert law.probs == pytest.approx(mine / mine.sum(), abs=1e-9)
    if law.allowed is not None:
        assert set(np.flatnonzero(whole)) <= law.allowed
    if law.doubtful > 0.0:
        assert law.doubtful >= 1.0 - mine.sum() - 1e-9
    elif law.allowed is not None and sampler.temperature <= 1.0:
        assert mine.sum() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("sampler", LAWS, ids=str)
@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0.2, 4.0))
def test_the_law_given_the_list_is_that_of_the_whole_row(
    sampler: dp.Sampler, seed: int, count: int, spread: float
) -> None:
    logits = np.random.default_rng(seed).normal(size=12) * spread
    holds(top_law(told(logits, count), sampler), logits, sampler)


def test_a_list_of_everything_leaves_nothing_open() -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0])
    law = top_law(told(logits, 4), dp.Sampler(top_p=0.8))
    assert law.allowed == frozenset[int | str]({0, 1})
    assert law.keys == [0, 1]
    assert law.doubtful == 0.0


def test_noise_leaves_near_equals_at_the_edge_in_doubt() -> None:
    logits = np.array([2.0, 1.0, 0.999, -1.0])
    law = top_law(told(logits, 4), dp.Sampler(top_k=2), noise=0.02)
    assert law.keys == [0]
    assert law.allowed == frozenset[int | str]({0, 1, 2})
    assert 0.2 < law.doubtful < 0.5


def test_without_truncation_the_rest_is_what_the_list_leaves() -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0, -2.0])
    law = top_law(told(logits, 2), dp.Sampler())
    p = np.exp(logits) / np.exp(logits).sum()
    assert law.allowed is None
    assert law.doubtful == pytest.approx(p[2:].sum())
    # Above temperature 1 it may be anything, by how many tokens share it.
    assert top_law(told(logits, 2), dp.Sampler(temperature=1.5)).doubtful == 0.0
    assert top_law(told(logits, 2), dp.Sampler(temperature=0.5)).doubtful >= (p[2:] ** 2).sum() / (p**2).sum()
