"""Write a drafter: propose what followed the last token the last time it occurred."""

from collections.abc import Sequence

import numpy as np

import draftproof as dp


class LastSeenDrafter(dp.Drafter):
    """Copies what followed the newest earlier occurrence of the last token."""

    name = "last-seen"
    stochastic = False  # drafts are not drawn from a law

    def session(self, slots: int = 1) -> dp.DraftSession:
        return LastSeenSession()


class LastSeenSession(dp.DraftSession):
    """Keeps no memory: everything it needs is in the proposal."""

    def propose(self, proposals: Sequence[dp.Proposal]) -> list[dp.Draft]:
        return [self._draft(each) for each in proposals]

    def _draft(self, proposal: dp.Proposal) -> dp.Draft:
        tokens = proposal.tokens
        earlier = np.flatnonzero(tokens[:-1] == tokens[-1])
        start = int(earlier[-1]) + 1 if len(earlier) else len(tokens)
        return dp.Draft(tokens[start : start + proposal.limit])  # an empty draft is legal


def main() -> None:
    sampler = dp.Sampler(temperature=0.8)
    plain = dp.Engine("toy:loop", drafter="none", sampler=sampler).generate("abc", max_tokens=80, seed=5)
    ours = dp.Engine("toy:loop", drafter=LastSeenDrafter(), sampler=sampler, num_draft_tokens=5).generate(
        "abc", max_tokens=80, seed=5
    )
    print(f"{ours.counts.num_passes} passes instead of {plain.counts.num_passes}, the same text: {ours.text}")
    assert ours.text == plain.text
    assert ours.counts.num_accepted_tokens > 0


if __name__ == "__main__":
    main()
