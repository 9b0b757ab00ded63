"""The ids that noise may carry across the edge of a truncated law."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.audit.edge import doubtful_edges
from draftproof.sampling import Sampler

SAMPLERS = [
    Sampler(top_k=5),
    Sampler(top_p=0.7),
    Sampler(min_p=0.1),
    Sampler(temperature=0.5, top_k=8, top_p=0.9, min_p=0.02),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_without_noise_both_are_the_support(sampler: Sampler) -> None:
    for seed in range(50):
        row = np.random.default_rng(seed).normal(scale=2.0, size=30)
        support = sampler.bind(0, (), 30).law(np.zeros(0, dtype=np.int32), row).support()
        certain, possible = doubtful_edges(row / sampler.temperature, sampler, 0.0, 0.0)
        assert certain.tolist() == support.tolist() == possible.tolist()


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_noise_within_the_margin_stays_between_them(sampler: Sampler) -> None:
    moved = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        row = rng.normal(scale=1.0, size=30)
        certain, possible = doubtful_edges(row / sampler.temperature, sampler, 0.08, 0.02)
        noisy = row + sampler.temperature * rng.uniform(-0.04, 0.04, size=30)
        support = sampler.bind(0, (), 30).law(np.zeros(0, dtype=np.int32), noisy).support()
        assert set(certain) <= set(support) <= set(possible)
        moved += len(certain) < len(possible)
    assert moved > 100


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_ids_that_are_left_out_before_sorting_change_nothing(sampler: Sampler) -> None:
    rng = np.random.default_rng(3)
    for width in (30, 3000):
        row = rng.normal(scale=3.0, size=width)
        few = doubtful_edges(row, sampler, 0.08, 0.02)
        # All of them stay where the bound is far away.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("draftproof.audit.edge._least", lambda *_: -np.inf)
            every = doubtful_edges(row, sampler, 0.08, 0.02)
        for one, other in zip(few, every, strict=True):
            assert one.tolist() == other.tolist()


def test_masked_ids_are_never_possible() -> None:
    certain, possible = doubtful_edges(np.array([1.0, -np.inf, 0.0]), Sampler(top_p=0.9), 0.1, 0.01)
    assert 1 not in possible
    assert set(certain) <= set(possible)
