"""Change the logits with a function of one's own; drafts are judged by the changed law, row by row."""

import numpy as np

import draftproof as dp


def no_double_letters(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Forbids the token that was emitted last; `tokens` holds the draft before this row as well."""
    logits[tokens[-1]] = -np.inf
    return logits


def main() -> None:
    vowels = [ord(letter) - ord("a") for letter in "aeiou"]
    sampler = dp.Sampler(
        temperature=1.0,
        top_p=0.95,
        frequency_penalty=0.1,
        logit_bias=dict.fromkeys(vowels, 1.5),
        processors=[no_double_letters],
    )
    texts = []
    for drafter in ("none", "ngram", "model:toy:pair-draft"):
        engine = dp.Engine("toy:pair", drafter=drafter, sampler=sampler, num_draft_tokens=4)
        out = engine.generate("abc", max_tokens=60, seed=11)
        print(f"{drafter:20} {out.text}  accepted {out.counts.num_accepted_tokens}/{out.counts.num_draft_tokens}")
        texts.append(out.text)
    assert len(set(texts)) == 1
    assert all(left != right for left, right in zip(texts[0], texts[0][1:], strict=False))


if __name__ == "__main__":
    main()
