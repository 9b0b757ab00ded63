"""How likely a looked-up token is to be accepted: a prior from the state it came from, and the request's own record."""

from __future__ import annotations

from math import exp

from draftproof.draft.automaton import ROOT, SuffixAutomaton

# Logits, fitted by logistic regression to texts that a chat model of 135M parameters wrote after two dozen prompts of
# Spec-Bench (greedy, and sampled at temperatures .3 to 1). They are where a request starts, not where it stays.
BY_LENGTH = (
    *(-0.95, -0.95, 0.1, 0.4, 0.8, 0.95, 1.05, 1.1, 1.2, 1.6, 1.65, 1.7, 1.75, 1.8, 1.8, 1.85, 1.9),
    *(1.9 + 0.035 * max(more - 8, 0) for more in range(1, 49)),
)
BY_COUNT = (-0.2, -0.2, 0.75, 1.0, 1.1, 1.15)
BY_SHARE = (-1.4, -1.25, -1.3, -0.5, 0.9)
BY_SHORTER_LENGTH = (0.0, 0.35, 0.25, -0.3, -0.3, -0.4)
BY_SHORTER_SHARE = (-0.9, -0.7, -0.35, -0.25, 0.8)
AGREED = 1.3
ALONE = 0.25


def prior_logit(index: SuffixAutomaton, state: int, length: int, token: int) -> float:
    """Returns the prior logit of P(`token` is accepted after a match).

    It is a sum of four terms, each from a table: the length of the match; its record, which is how often the token
    followed if nothing else ever did, else the token's share; the token's share after the next shorter match, which
    was seen more often; and the length of that.

    Args:
        index: the text that the match was found in.
        state: the state matched.
        length: how many tokens match.
        token: one that followed the state.
    """
    count, follows = index.count, index.moves[state]
    logit = BY_LENGTH[length if length < 64 else 64]
    seen = count[state]
    if len(follows) == 1:
        logit += BY_COUNT[seen if seen < 5 else 5]
    else:
        share = int(5 * count[follows[token]] / seen) if seen else 0
        logit += BY_SHARE[share if share < 4 else 4]
    back = index.link[state]
    if back <= ROOT:
        return logit + ALONE
    follows = index.moves[back]
    shorter = index.length[back]
    logit += BY_SHORTER_LENGTH[shorter if shorter < 5 else 5]
    if len(follows) == 1:
        return logit + AGREED
    seen = count[back]
    share = int(5 * count[follows[token]] / seen) if seen else 0
    return logit + BY_SHORTER_SHARE[share if share < 4 else 4]


class Evidence:
    """What one request's own text has shown about a drafter's guesses.

    The request's estimate of a guess is the logistic function of `slope * logit + shift`, with the prior's logit.
    `shift` follows the gradient of the likelihood of the outcomes. The step is short while outcomes surprise in both
    directions and grows while they surprise in one (`trend`): a change of the text is followed within some twenty
    tokens, noise is not.

    Args:
        greedy: whether the request decodes greedily. When sampling, even what always happened happens less surely.
        offset: where `shift` starts, in addition.
    """

    __slots__ = ("shift", "slope", "trend")

    STEP = 0.06
    GAIN = 0.3
    FADING = 0.9

    def __init__(self, greedy: bool, offset: float = 0.0) -> None:
        self.slope = 1.0 if greedy else 0.85
        self.shift = offset + (0.15 if greedy else -0.2)
        self.trend = 0.0

    def record(self, logit: float, hit: bool) -> None:
        """Learns from one guess: the prior logit it had, and whether it came true."""
        surprise = hit - 1.0 / (1.0 + exp(-self.slope * logit - self.shift))
        self.trend += (1.0 - self.FADING) * (surprise - self.trend)
        self.shift += (self.STEP + self.GAIN * abs(self.trend)) * surprise
