"""Generate the same text with and without drafts, and read what speculation did."""

import draftproof as dp


def main() -> None:
    target = dp.load("toy:loop")  # a 26-letter model that mostly repeats a phrase
    sampler = dp.Sampler(temperature=0.8)
    plain = dp.Engine(target, drafter="none", sampler=sampler).generate("abc", max_tokens=60, seed=1)
    drafted = dp.Engine(target, drafter="suffix", sampler=sampler, num_draft_tokens=6).generate(
        "abc", max_tokens=60, seed=1
    )
    print(drafted.text)
    print(f"finish_reason={drafted.finish_reason}, completion_tokens={drafted.usage.completion_tokens}")
    for name, out in (("plain", plain), ("suffix", drafted)):
        counts = out.counts
        print(
            f"{name:6}  passes={counts.num_passes:2}  drafted={counts.num_draft_tokens:2}  "
            f"accepted={counts.num_accepted_tokens:2}  tokens per pass={counts.tokens_per_pass:.2f}"
        )
    assert drafted.tokens == plain.tokens
    assert drafted.counts.num_passes < plain.counts.num_passes == 60


if __name__ == "__main__":
    main()
