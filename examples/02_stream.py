"""Stream text as the passes give it, end at a stop string, and keep the whole result."""

import draftproof as dp


def main() -> None:
    engine = dp.Engine("toy:loop", drafter="suffix", sampler=dp.Sampler(temperature=0.8), num_draft_tokens=6)
    streamed = ""
    done = None
    for step in engine.stream("abc", max_tokens=200, stop=["cdefgh", "zz"], seed=3):
        print(f"{step.text!r:10} {len(step.tokens)} tokens, {step.num_accepted_tokens}/{step.num_draft_tokens} drafts")
        streamed += step.text
        done = step.completion  # set on the last step
    assert done is not None
    assert done.text == streamed
    assert len(done.tokens) == done.usage.completion_tokens
    print(f"{done.text!r}: {done.finish_reason}")

    # A stream may be closed early; the engine is free for the next request at once.
    steps = engine.stream("abc", max_tokens=200)
    next(iter(steps))
    del steps
    assert engine.generate("abc", max_tokens=5).usage.completion_tokens == 5


if __name__ == "__main__":
    main()
