"""A seed fixes the text: not the drafter, nor the draft length, nor the number of passes changes a token of it."""

import draftproof as dp


def main() -> None:
    sampler = dp.Sampler(temperature=1.0, top_k=20)
    texts = set()
    for drafter in ("none", "ngram", "suffix", "model:toy:pair-draft"):
        for length in (1, 4, 16):
            engine = dp.Engine("toy:pair", drafter=drafter, sampler=sampler, num_draft_tokens=length)
            out = engine.generate("abc", max_tokens=40, seed=2024)
            assert out.rule == "coupled"  # what "auto" means for a request with a seed
            print(f"{drafter:20} k={length:2}  {out.counts.num_passes:2} passes  {out.text}")
            texts.add(out.text)
    assert len(texts) == 1

    # Without a seed every call draws fresh randomness, and reports it: give it back for the same text.
    engine = dp.Engine("toy:pair", drafter="suffix", sampler=sampler)
    first = engine.generate("abc", max_tokens=40)
    again = engine.generate("abc", max_tokens=40, seed=first.seed)
    assert again.text == first.text


if __name__ == "__main__":
    main()
