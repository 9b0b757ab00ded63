"""Makes a draft model of a target's first layers, taught on the target's own text; without arguments, of a tiny one.

python examples/13_distill_a_draft.py transformers:smollm2-135m 4 50 my-draft    # 4 layers, 50 minutes
draftproof generate "Why is the sky blue?" --target transformers:smollm2-135m --drafter model:my-draft
"""

import copy
import inspect
import random
import sys
import time

import tokenizers
import torch
import transformers

import draftproof as dp
from draftproof.draft.copies import first_layers
from draftproof.models.transformers import TransformersModel

spec, layers, minutes, out = sys.argv[1:] or ("", "1", "0.05", "")
letters = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={chr(97 + i): i for i in range(26)}, merges=[]))
config = transformers.GPT2Config(
    vocab_size=26, n_embd=48, n_layer=3, initializer_range=0.3, bos_token_id=0, eos_token_id=1
)
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters)
target = dp.load(spec, dtype="bfloat16") if spec else TransformersModel(transformers.GPT2LMHeadModel(config), tokenizer)
assert isinstance(target, TransformersModel)
module, batch, length = target.module, 96 if spec else 8, 256 if spec else 32
start = target.tokenizer.encode("<|im_start|>user\n", parse_special=True).tolist() if spec else [0]
cache = "cache" if "cache" in inspect.signature(module.base_model.forward).parameters else "past_key_values"

student = copy.deepcopy(first_layers(target, layers).module).float().requires_grad_(False)
taught = [weight for name, weight in student.named_parameters() if "layers." in name or ".h." in name or "norm" in name]
optimizer = torch.optim.AdamW([weight.requires_grad_() for weight in taught])
began, read, overlaps = time.monotonic(), list[tuple[torch.Tensor, torch.Tensor]](), list[float]()
while (spent := (time.monotonic() - began) / (60 * float(minutes))) < 1.0:
    # The target writes at temperature 0.8; its last hidden states are kept, which its head makes laws of.
    text, seen, past = torch.tensor([start] * batch), list[torch.Tensor](), transformers.DynamicCache()
    with torch.no_grad():
        for _ in range(length):
            seen.append(module.base_model(text[:, past.get_seq_length() :], **{cache: past}).last_hidden_state)
            cdf = (module.lm_head(seen[-1][:, -1]).float() / 0.8).softmax(-1).cumsum(-1)
            text = torch.cat([text, torch.searchsorted(cdf, torch.rand(batch, 1) * cdf[:, -1:])], 1)
    new = [(text[i : i + 8, :-1], torch.cat(seen, 1)[i : i + 8]) for i in range(0, batch, 8)]
    read += new
    for ids, hidden in new + random.sample(read, len(new)):  # what is new, and as much of all so far
        optimizer.param_groups[0]["lr"] = 1e-3 * min(len(overlaps) / 30, max(1.0 - spent, 0.01))
        with torch.autocast("cpu", torch.bfloat16):
            p, q = module.lm_head(hidden).float().softmax(-1), student(ids).logits.float().log_softmax(-1)
        overlap = torch.minimum(p, q.exp()).sum(-1).mean()  # the acceptance at temperature 1
        optimizer.zero_grad()
        (-(p * q).sum(-1).mean() if spent < 0.6 else 1.0 - overlap).backward()
        optimizer.step()
        overlaps.append(overlap.item())
    print(f"{len(overlaps)} steps: the laws overlap by {sum(overlaps[-len(new) :]) / len(new):.3f}", flush=True)
if out:
    student.to(module.dtype).save_pretrained(out)
    target.tokenizer.tokenizer.save_pretrained(out)
