"""What the tests run on: an adversarial grid of (target, drafter) pairs; hypothesis strategies for laws and rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from jaxtyping import Float

from draftproof.distribution import Distribution
from draftproof.sampling import Sampler
from tests.laws import Case, Table, Text

LARGEST_UNIFORM = 1 - 2.0**-53
EDGE_UNIFORMS = (0.0, 2.0**-53, 0.5, LARGEST_UNIFORM)


def by_context(laws: Sequence[Sequence[float]]) -> Table:
    """Returns a model that picks one of `laws` by the whole text so far."""

    def table(context: Text) -> Sequence[float]:
        return laws[sum((place + 1) * (token + 1) for place, token in enumerate(context)) % len(laws)]

    return table


def by_place(laws: Sequence[Sequence[float]], first: int = 1) -> Table:
    """Returns a model that picks by the position alone, `laws[0]` at position `first`, the last for ever after."""
    return lambda context: laws[min(len(context) - first, len(laws) - 1)]


def _one_hot(vocab: int, token: int, rest: float = 0.0) -> list[float]:
    law = [rest] * vocab
    law[token % vocab] = 1.0 - rest * (vocab - 1)
    return law


def _random(vocab: int, seed: int, count: int = 5, concentration: float = 0.7) -> list[list[float]]:
    rows = np.random.default_rng((seed, vocab)).dirichlet([concentration] * vocab, count)
    return [list(row) for row in rows.tolist()]


def _mixed(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], share: float) -> list[list[float]]:
    return [
        [(1 - share) * x + share * y for x, y in zip(one, other, strict=True)] for one, other in zip(a, b, strict=True)
    ]


def families(vocab: int) -> dict[str, tuple[list[list[float]], list[list[float]]]]:
    """Returns (target laws, draft laws) by what is adversarial about them."""
    total = vocab * (vocab + 1) / 2
    ramp = [(token + 1) / total for token in range(vocab)]
    rows = _random(vocab, 1)
    half = [2.0 / vocab if token % 2 == 0 else 0.0 for token in range(vocab)]
    even = [each / sum(half) for each in half]
    odd = [0.0 if token % 2 == 0 else 1.0 / (vocab // 2) for token in range(vocab)]
    no_first = [0.0] + [1.0 / (vocab - 1)] * (vocab - 1)
    no_last = no_first[::-1]
    wobble = [1.0 + 3e-16 * (-1) ** token for token in range(vocab)]
    return {
        "equal": ([ramp, ramp[::-1], rows[0]], [ramp, ramp[::-1], rows[0]]),
        "rounded": (rows, [[x * w for x, w in zip(row, wobble, strict=True)] for row in rows]),
        "target-one-hot": ([_one_hot(vocab, 0), _one_hot(vocab, 1)], [ramp, ramp[::-1], rows[0]]),
        "draft-one-hot": (rows, [_one_hot(vocab, 0), _one_hot(vocab, vocab - 1)]),
        "both-one-hot": ([_one_hot(vocab, 0), _one_hot(vocab, 1)], [_one_hot(vocab, 1), _one_hot(vocab, 0), ramp]),
        "disjoint": ([even], [odd]),
        "zeros": ([no_first, no_last, ramp], [no_last, ramp, no_first, no_first]),
        "tiny": (
            [_one_hot(vocab, 0, 1e-6), _one_hot(vocab, 1, 1e-6), ramp],
            [_one_hot(vocab, 1, 1e-6), _one_hot(vocab, 0, 1e-6), _one_hot(vocab, vocab - 1, 1e-6)],
        ),
        "near": (rows, _mixed(rows, _random(vocab, 2), 0.2)),
        "far": (_random(vocab, 3), _random(vocab, 4)),
        # A ratio far above 1 and then one far below: a product that is not capped at 1 goes wrong here.
        "clamped": ([_one_hot(vocab, 0, 0.1), _one_hot(vocab, 0, 0.05)], [ramp, _one_hot(vocab, 0, 0.2), ramp[::-1]]),
    }


def family(name: str, vocab: int, k: int, *, deterministic: bool = False) -> Case:
    """Returns the case of one family at one size."""
    target, draft = families(vocab)[name]
    title = f"{name}-deterministic" if deterministic else name
    return Case(title, vocab, k, by_context(target), by_context(draft), deterministic=deterministic)


def grid(vocab: int, k: int) -> list[Case]:
    """Returns the adversarial cases of one size, drafted by sampling and by a deterministic drafter."""
    sampled = [family(name, vocab, k) for name in families(vocab)]
    return sampled + [family(name, vocab, k, deterministic=True) for name in ("zeros", "tiny", "far")]


WORKED_P = (0.5, 0.3, 0.15, 0.05)
WORKED_Q = (0.6, 0.2, 0.1, 0.1)
WORKED = Case("worked", 4, 1, by_context([WORKED_P]), by_context([WORKED_Q]))

# The block rule with the token rule's residual is invisible at k = 1 or V = 2, and on most pairs.
BLOCK_WITNESS = Case(
    "block-witness",
    3,
    2,
    by_place([(0.2, 0.4, 0.4), (0.6, 0.4, 0.0), (0.2, 0.3, 0.5)]),
    by_place([(0.4, 0.3, 0.3), (0.05, 0.15, 0.8)]),
)

# https://github.com/huggingface/transformers/issues/47932: drafts drawn after top-k, judged by the law before it.
TRUNCATED = Case(
    "top-k",
    4,
    2,
    by_place([(0.5, 0.3, 0.15, 0.05), (0.1, 0.2, 0.3, 0.4)]),
    by_place([(0.3, 0.4, 0.2, 0.1), (0.2, 0.4, 0.3, 0.1)]),
    sampler=Sampler(top_k=2),
)

# The residual here is the law itself: a second top-p cuts it to one token.
NUCLEUS = Case(
    "top-p",
    3,
    2,
    by_place([(0.8, 0.1, 0.1), (0.4, 0.3, 0.3)]),
    by_place([(0.1, 0.0, 0.9), (0.2, 0.3, 0.5)]),
    sampler=Sampler(top_p=0.85),
)

# https://github.com/vllm-project/vllm/issues/42744: minimum probability and bias acted on the bonus row only.
MASKED = Case(
    "min-p-and-bias",
    3,
    2,
    by_context([(0.6, 0.25, 0.15), (0.2, 0.5, 0.3)]),
    by_context([(0.3, 0.4, 0.3), (0.25, 0.25, 0.5)]),
    sampler=Sampler(min_p=0.45, logit_bias={2: 0.5}),
    draft_sampler=Sampler(),
)

# https://github.com/ROCm/ATOM/pull/2318: drafted rows at a fixed temperature, the bonus row at the user's.
TEMPERED = Case(
    "temperature",
    3,
    2,
    by_context([(0.6, 0.4, 0.0), (0.2, 0.5, 0.3)]),
    by_context([(0.3, 0.4, 0.3), (0.25, 0.25, 0.5)]),
    sampler=Sampler(temperature=0.5),
)

GREEDY = Case(
    "greedy",
    3,
    2,
    by_context([(0.6, 0.3, 0.1), (0.2, 0.5, 0.3)]),
    by_context([(0.3, 0.4, 0.3), (0.25, 0.25, 0.5)]),
    sampler=Sampler(temperature=0.0),
    draft_sampler=Sampler(),
)

# https://github.com/osaurus-ai/vmlx-swift/issues/357: penalties counted what was never emitted.
PENALISED = Case(
    "penalties",
    3,
    2,
    by_context([(0.5, 0.3, 0.2), (0.2, 0.5, 0.3)]),
    by_context([(0.1, 0.1, 0.8), (0.2, 0.2, 0.6)]),
    sampler=Sampler(presence_penalty=0.5, frequency_penalty=0.7),
    draft_sampler=Sampler(),
)

SPECIAL = [WORKED, BLOCK_WITNESS, TRUNCATED, NUCLEUS, MASKED, TEMPERED, GREEDY, PENALISED]


def weights(size: int) -> st.SearchStrategy[list[float]]:
    """Non-negative weights with a positive sum: zeros, tiny ones, equal ones and ordinary ones mixed."""
    one = st.one_of(
        st.sampled_from([0.0, 0.0, 1e-300, 1e-30, 1e-9, 1e-6, 0.1, 0.25, 1 / 3, 0.5, 1.0]),
        st.floats(0.0, 1.0, allow_subnormal=False),
    )
    return st.lists(one, min_size=size, max_size=size).filter(lambda values: sum(values) > 0.0)


@st.composite
def distributions(draw: st.DrawFn, max_vocab: int = 6) -> Distribution:
    """Laws over 0..max_vocab-1, dense or on a small support."""
    size = draw(st.integers(1, max_vocab))
    probs = np.array(draw(weights(size)))
    if draw(st.booleans()):
        return Distribution(probs)
    ids = draw(st.lists(st.integers(0, max_vocab - 1), min_size=size, max_size=size, unique=True).map(sorted))
    return Distribution(probs, np.array(ids, dtype=np.int64))


def uniforms() -> st.SearchStrategy[float]:
    """Coins in [0, 1), both ends included as often as not."""
    return st.one_of(st.sampled_from(EDGE_UNIFORMS), st.floats(0.0, LARGEST_UNIFORM))


@st.composite
def rows(draw: st.DrawFn, vocab: int = 7) -> Float[np.ndarray, "vocab"]:
    """Logits with ties, -inf, half-precision-sized values, in any float type; at least one is finite."""
    value = st.one_of(
        st.sampled_from([-np.inf, -60000.0, -8.0, -1.0, 0.0, 0.0, 1.0, 1.0, 2.5, 60000.0]),
        st.floats(-20.0, 20.0, width=16),
    )
    values = draw(st.lists(value, min_size=vocab, max_size=vocab).filter(lambda row: max(row) > -np.inf))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    row: Float[np.ndarray, "vocab"] = np.array(values, dtype=dtype)
    return row
