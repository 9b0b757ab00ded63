"""A draft model and a target of the transformers library, built here with random weights in place of a download."""

import tokenizers
import torch
import transformers

import draftproof as dp
from draftproof.models.transformers import TransformersModel

letters = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={chr(97 + i): i for i in range(26)}, merges=[]))
letters.decoder = tokenizers.decoders.Fuse()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters)


def model(layers: int, name: str) -> TransformersModel:
    """With a checkpoint this is one line: dp.load("directory or hub name", dtype="bfloat16")."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=26,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    return TransformersModel(transformers.AutoModelForCausalLM.from_config(config), tokenizer, name=name)


target, draft = model(4, "target"), model(1, "draft")

sampled = dp.Engine(target, dp.ModelDrafter(draft), sampler=dp.Sampler(temperature=0.8), num_draft_tokens=3)
out = sampled.generate("hello", max_tokens=40)
print(out.text, f"({out.rule} rule, {out.counts.draft_acceptance_rate:.0%} of the drafts accepted)")

# Many prompts share each pass, whatever their lengths and however many draft tokens each accepts.
batch = dp.Engine(target, dp.ModelDrafter(draft), sampler=dp.Sampler(temperature=0), num_draft_tokens=3)
plain = dp.Engine(target, "none", sampler=dp.Sampler(temperature=0))
prompts = ["a", "quick", "thequickbrownfox"]
for prompt, drafted in zip(prompts, batch.generate_batch(prompts, max_tokens=20), strict=True):
    same = drafted.tokens == plain.generate(prompt, max_tokens=20).tokens
    print(prompt, "->", drafted.text, "(as without drafts)" if same else "(a near tie went the other way)")

# No draft model at hand: the target's own first layers, which share its weights.
itself = dp.Engine(target, "self:layers=2", sampler=dp.Sampler(temperature=0), num_draft_tokens=3)
counts = itself.generate("hello", max_tokens=40).counts
print(f"first layers: {counts.draft_acceptance_rate:.0%} accepted, {counts.tokens_per_pass:.2f} tokens a pass")
