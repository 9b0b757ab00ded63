"""Makes a draft model of a target's first layers, taught on text that the target writes itself.

Without arguments on a tiny model with random weights; for a real one, in under an hour on two cores:

    python examples/13_distill_a_draft.py --target transformers:smollm2-135m --layers 6 --minutes 50 --out my-draft
    draftproof generate "Why is the sky blue?" --target transformers:smollm2-135m --drafter model:my-draft
"""

import argparse
import copy
import time

import tokenizers
import torch
import transformers

import draftproof as dp
from draftproof.draft.copies import first_layers
from draftproof.models.transformers import TransformersModel

parser = argparse.ArgumentParser()
parser.add_argument("--target")
parser.add_argument("--layers", default="1")
parser.add_argument("--minutes", type=float, default=0.05)
parser.add_argument("--out")
options = parser.parse_args()
if options.target:
    target, batch, length = dp.load(options.target, dtype="bfloat16"), 32, 256
else:
    letters = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={chr(97 + i): i for i in range(26)}, merges=[]))
    sizes = {"vocab_size": 26, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}
    config = transformers.GPT2Config(**sizes, initializer_range=0.3, bos_token_id=0, eos_token_id=None)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters)
    target, batch, length = TransformersModel(transformers.GPT2LMHeadModel(config), tokenizer, name="tiny"), 8, 32
assert isinstance(target, TransformersModel)

student = copy.deepcopy(first_layers(target, options.layers).module).float().requires_grad_(False)
taught = [weight for name, weight in student.named_parameters() if "layers." in name or ".h." in name or "norm" in name]
optimizer = torch.optim.AdamW([weight.requires_grad_() for weight in taught], lr=1e-3, weight_decay=0.0)

start = target.tokenizer.encode("<|im_start|>user\n", parse_special=True) if options.target else [0]
began = time.monotonic()
overlaps: list[float] = []
while (spent := (time.monotonic() - began) / (60 * options.minutes)) < 1.0 or len(overlaps) < 20:
    # The target writes both sides of a chat, at temperature 1; its laws along that text are what is to be learnt.
    ids = torch.tensor([list(map(int, start))] * batch)
    text = target.module.generate(ids, do_sample=True, top_k=0, min_new_tokens=length, max_new_tokens=length)
    with torch.no_grad():
        laws = target.module(text).logits.float().softmax(-1)
    for rows, p in zip(text.split(8), laws.split(8), strict=True):
        q = student(rows).logits.log_softmax(-1)
        optimizer.param_groups[0]["lr"] = 1e-3 * max(1.0 - spent, 0.02)
        optimizer.zero_grad()
        (-(p * q).sum(-1).mean()).backward()
        optimizer.step()
        overlaps.append(torch.minimum(p, q.detach().exp()).sum(-1).mean().item())
print(f"mean overlap of the two laws, which is the acceptance: {overlaps[0]:.2f} at first, {overlaps[-1]:.2f} at last")
if options.out:
    student.to(target.module.dtype).save_pretrained(options.out)
    target.tokenizer.tokenizer.save_pretrained(options.out)
