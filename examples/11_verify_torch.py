"""The acceptance step for an engine of your own, on tensors: from logits, ragged, each row with its own options."""

import torch

import draftproof as dp

BATCH, DRAFT, VOCAB = 3, 4, 1000
generator = torch.Generator().manual_seed(0)
target_logits = 3 * torch.randn(BATCH, DRAFT + 1, VOCAB, generator=generator)
draft_logits = target_logits[:, :DRAFT] + 0.3 * torch.randn(BATCH, DRAFT, VOCAB, generator=generator)
temperature = torch.tensor([0.0, 0.7, 1.0])  # the first request is greedy

# The drafter samples from its logits shaped as the target's will be; at temperature 0 that is the largest one.
laws = (draft_logits / temperature.clamp(min=0.1)[:, None, None]).softmax(-1)
tokens = torch.multinomial(laws.flatten(0, 1), 1, generator=generator).view(BATCH, DRAFT)
tokens[0] = draft_logits[0].argmax(-1)

result = dp.verify_logits(
    target_logits,
    tokens,
    draft_logits,
    temperature=temperature,
    num_draft=torch.tensor([4, 2, 0]),  # the third request has no draft: it gets one token, drawn from the target
    seed=[11, 12, 13],  # a seed for each request
    positions=torch.tensor([120, 35, 7]),  # where each request's draft starts in its text
)
print("accepted", result.num_accepted.tolist())
print("tokens  ", result.tokens.tolist())

alone = dp.verify_logits(
    target_logits[1], tokens[1], draft_logits[1], temperature=0.7, num_draft=2, seed=12, positions=35
)
assert torch.equal(alone.tokens, result.tokens[1])  # a row's verdict does not depend on its batch
