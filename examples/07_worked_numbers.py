"""Recompute the numbers of docs/theory.md: the token rule's law by enumeration, and the formulas beside it."""

import itertools

import numpy as np

import draftproof as dp

ACCEPT, FINAL = dp.Lane.ACCEPT, dp.Lane.FINAL
P = dp.Distribution(np.array([0.5, 0.3, 0.15, 0.05]))
Q = dp.Distribution(np.array([0.6, 0.2, 0.1, 0.1]))


def first_token_law(p: dp.Distribution, q: dp.Distribution, grid: int = 60) -> tuple[np.ndarray, float]:
    """Runs the rule on every draft and a grid of coins: exact, as every threshold here is a multiple of 1/60."""
    law, acceptance = np.zeros(len(p)), 0.0
    coins = (np.arange(grid) + 0.5) / grid
    for x, accept, final in itertools.product(range(len(q)), coins, coins):
        noise = dp.ScriptedNoise({(0, 0, ACCEPT): accept, (0, 0, FINAL): final, (0, 1, FINAL): final})
        verdict = dp.TokenRule().verify([p, p], dp.Draft(np.array([x]), [q]), noise, 0)
        weight = q.prob(x) / grid**2
        acceptance += weight * verdict.accepted
        law[x if verdict.accepted else verdict.token] += weight
    return law, acceptance


def speed_up(a: float, c: float, k: int, v: tuple[float, ...] = (1.0,) * 64) -> float:
    """S(k) with independent acceptance a, draft cost c, and v[n - 1] the cost of a pass over n rows."""
    return (1 - a ** (k + 1)) / (1 - a) / (k * c + v[k])


def main() -> None:
    law, acceptance = first_token_law(P, Q)
    print("emitted law", law.round(12), "acceptance", round(acceptance, 12), "overlap", P.overlap(Q))
    assert np.allclose(law, P.probs, atol=1e-12)
    assert np.isclose(acceptance, 0.85, atol=1e-12)
    assert np.allclose(P.residual(Q).probs, [0, 2 / 3, 1 / 3, 0])

    match = sum(1 / np.maximum(P.probs / P.prob(x), Q.probs / Q.prob(x)).sum() for x in range(4))
    print("coupled match", round(match, 3), "independent match", round(float(P.probs @ Q.probs), 3))
    assert (round(match, 3), round(0.85 / 1.15, 3)) == (0.834, 0.739)
    assert np.isclose(P.probs @ Q.probs, 0.38)

    dropping = 0.8 * min(1.0, 0.5 / 0.8) + 0.2 * 0.5  # token 0 drafted and kept; token 1 dropped, then the bonus
    assert np.isclose(dropping, 0.6), "instead of .5"

    cases = (0.6, 0.1, 3, 1.67), (0.8, 0.05, 8, 3.09), (0.8, 0.1, 6, 2.47), (0.9, 0.05, 13, 4.67), (0.9, 0.02, 19, 6.37)
    for a, c, best, speed in cases:
        speeds = [speed_up(a, c, k) for k in range(64)]
        print(f"a={a} c={c}: best k={int(np.argmax(speeds))}, S={max(speeds):.3f}")
        assert (int(np.argmax(speeds)), round(max(speeds), 2)) == (best, speed)
    stairs = (1.0, 1.7, 1.75, 1.8)
    assert [round(speed_up(0.6, 0.0, k, stairs), 2) for k in (1, 3)] == [0.94, 1.21]
    assert [round(speed_up(0.8, 0.0, k, stairs), 2) for k in (1, 3)] == [1.06, 1.64]
    assert round(sum(0.8**j for j in (1, 2, 3, 4)) / 4, 2) == 0.59


if __name__ == "__main__":
    main()
