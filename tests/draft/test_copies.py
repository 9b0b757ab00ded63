"""Draft models made from the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftproof.draft import ModelDrafter, load_drafter
from draftproof.draft.copies import cache_folder, first_layers, quantised
from draftproof.engine import Engine
from draftproof.errors import ModelLoadError, UsageError
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.transformers import TransformersModel
from draftproof.sampling import Sampler
from tests.models import gguf_file, tiny_transformers

GREEDY = Sampler(temperature=0.0)


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaCppModel:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    return LlamaCppModel(gguf_file.write_llama(tmp_path / "target.gguf"), context_length=128)


def test_a_copy_in_fewer_bits_is_made_once_and_drafts(gguf: LlamaCppModel) -> None:
    plain = Engine(gguf, "none", sampler=GREEDY).generate([5, 6, 7], max_tokens=20)
    drafter = load_drafter("self:q4_0", gguf)
    assert isinstance(drafter, ModelDrafter)
    assert drafter.name == "model:target-q4_0"
    (made,) = cache_folder().glob("*")
    assert made.stat().st_size < gguf.path.stat().st_size
    before = made.stat().st_mtime_ns
    out = Engine(gguf, "self:q4_0", sampler=GREEDY, num_draft_tokens=3).generate([5, 6, 7], max_tokens=20)
    assert made.stat().st_mtime_ns == before
    assert out.tokens == plain.tokens
    assert out.counts.num_accepted_tokens > 0


def test_another_file_gets_another_copy(gguf: LlamaCppModel, tmp_path: Path) -> None:
    first = quantised(gguf.path, "q8_0")
    (tmp_path / "other").mkdir()
    other = gguf_file.write_llama(tmp_path / "other" / "target.gguf")
    assert quantised(other, "q8_0") != first
    assert quantised(gguf.path, "q4_0") != first


def test_a_folder_that_cannot_be_written(gguf: LlamaCppModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match=r"cannot be kept in .*; set DRAFTPROOF_CACHE"):
        load_drafter("self:q4_0", gguf)


def test_a_copy_that_fails_leaves_no_part_behind(gguf: LlamaCppModel, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf.path.read_bytes()[:200])
    with pytest.raises(ModelLoadError, match="cannot make a copy"):
        quantised(broken, "q4_0")
    assert not list(cache_folder().glob("*"))


def test_the_cache_is_the_user_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRAFTPROOF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "draftproof"


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma", "mistral", "lfm2"])
def test_first_layers_share_the_weights_and_draft(kind: str) -> None:
    target = tiny_transformers.model(kind)
    small = first_layers(target, "1" if kind != "lfm2" else "2")
    ours = dict(target.module.named_parameters())
    for name, weight in small.module.named_parameters():
        assert weight.data_ptr() == ours[name].data_ptr()
    assert sum(1 for name in ours) > len(list(small.module.parameters()))
    plain = Engine(target, "none", sampler=GREEDY).generate([5, 6, 7], max_tokens=20)
    out = Engine(target, ModelDrafter(small), sampler=GREEDY, num_draft_tokens=3).generate([5, 6, 7], max_tokens=20)
    assert out.tokens == plain.tokens
    assert out.counts.num_draft_tokens > 0


def test_layers_that_cannot_run_alone_are_refused() -> None:
    """transformers itself asks for an attention layer where there is a mask."""
    with pytest.raises(ModelLoadError, match=r"lfm2-layers=1 cannot run token by token: .*LinearAttention"):
        load_drafter("self:layers=1", tiny_transformers.model("lfm2"))


def test_first_layers_are_the_target_s_own_beginning() -> None:
    """With the layers left out made to do nothing, the copy and the target are one model."""
    import torch

    target = tiny_transformers.model("llama")
    with torch.no_grad():
        for layer in target.module.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    small = first_layers(target, "2")
    with target.session() as whole, small.session() as part:
        from tests.models.session_conformance import ask

        np.testing.assert_allclose(ask(part, [3, 4, 5], [6, 7]), ask(whole, [3, 4, 5], [6, 7]), atol=1e-5)


@pytest.mark.parametrize("count", ["0", "3", "x", "-1", ""])
def test_a_count_out_of_range(count: str) -> None:
    target: TransformersModel = tiny_transformers.model("llama")
    with pytest.raises(UsageError, match=r"is out of range; llama has 3: use 1 to 2"):
        load_drafter(f"self:layers={count}", target)
