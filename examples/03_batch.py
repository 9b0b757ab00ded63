"""Run several requests in shared passes, each with its own sampler, seed and limits."""

import draftproof as dp


def main() -> None:
    engine = dp.Engine("toy:pair", drafter="model:toy:pair-draft", num_draft_tokens=4)
    requests: list[dp.Request | str] = [
        dp.Request("abc", sampler=dp.Sampler(temperature=0.0)),
        dp.Request("abc", sampler=dp.Sampler(temperature=1.0, top_k=5), seed=1),
        dp.Request("xyz", sampler=dp.Sampler(temperature=0.7, min_p=0.05), seed=2, max_tokens=8),
        dp.Request("hello", seed=3, speculate=False),  # this one is decoded plainly
        "hello",  # a bare prompt: the engine's sampler and the options below
    ]
    together = engine.generate_batch(requests, max_tokens=24, seed=9)
    for out in together:
        print(f"{out.text:24}  seed={out.seed}  rule={out.rule}  accepted={out.counts.num_accepted_tokens}")

    # A request does not notice its neighbours: alone, it gives the same tokens. A plain seed s gives request i of a
    # batch the seed (s, i), unless it brings its own.
    for i, (request, out) in enumerate(zip(requests, together, strict=True)):
        own_seed = isinstance(request, dp.Request) and request.seed is not None
        options = {} if own_seed else {"seed": (9, i)}
        assert engine.generate(request, **{"max_tokens": 24} | options).tokens == out.tokens


if __name__ == "__main__":
    main()
