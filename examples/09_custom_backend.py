"""Write a backend: a model that counts pairs of letters in a text."""

from collections.abc import Sequence

import numpy as np

import draftproof as dp

TEXT = "she sells sea shells by the sea shore; the shells she sells are sea shells i am sure. "


class PairModel(dp.Model):
    """P(next letter | last letter) in proportion to how often the pair occurs, smoothed."""

    name = "pairs"
    context_length = 4096
    eos_ids: frozenset[int] = frozenset()

    def __init__(self, text: str) -> None:
        self.tokenizer = dp.ToyTokenizer([bytes([letter]) for letter in sorted(set(text.encode()))])
        tokens = self.tokenizer.encode(text)
        self.vocab_size = int(tokens.max()) + 1
        counts = np.full((self.vocab_size, self.vocab_size), 0.01)
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1.0)
        self.logits = np.log(counts)

    def session(self, slots: int = 1) -> dp.Session:
        return PairSession(self, slots)


class PairSession(dp.Session):
    """`Session` does the bookkeeping of prefixes; a backend only runs what is left to run."""

    model: PairModel

    def _forward(self, queries: Sequence[dp.Query], keep: Sequence[int]) -> list[dp.Rows]:
        rows: list[dp.Rows] = []
        for query in queries:
            # A model with a cache would cut slot query.slot to its keep[i] tokens here and run text[keep[i]:] only.
            text = np.concatenate([query.tokens, query.draft])
            rows.append(list(self.model.logits[text[len(query.tokens) - 1 :]]))  # one row for each place 0..len(draft)
        return rows


def main() -> None:
    model = PairModel(TEXT)
    texts = []
    for drafter in ("none", "suffix"):
        engine = dp.Engine(model, drafter=drafter, sampler=dp.Sampler(temperature=0.7), num_draft_tokens=4)
        out = engine.generate("she ", max_tokens=60, seed=4)
        print(f"{drafter:7} {out.counts.num_passes} passes: {out.text}")
        texts.append(out.text)
    assert texts[0] == texts[1]


if __name__ == "__main__":
    main()
