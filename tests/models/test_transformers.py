"""Loading transformers models, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from draftproof.errors import MissingDependencyError, ModelLoadError, UsageError
from draftproof.models.base import Query
from draftproof.models.load import load
from draftproof.models.transformers import TransformersModel
from draftproof.models.transformers_loading import load_transformers
from draftproof.types import NO_TOKENS, as_tokens
from tests.models import tiny_transformers
from tests.models.session_conformance import ask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tiny_transformers.saved(tiny_transformers.model("llama"), tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    for each in folder.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    return tmp_path


def test_a_directory_by_every_name(folder: Path) -> None:
    text = as_tokens(tiny_transformers.ids(1, 20))
    with tiny_transformers.model("llama").session() as session:
        right = ask(session, text)
    for spec in (f"transformers:{folder}", str(folder), folder):
        with load(spec, context_length=99, dtype="float32", device="cpu") as model:
            assert isinstance(model, TransformersModel)
            assert (model.name, model.context_length, model.vocab_size) == ("tiny", 99, tiny_transformers.VOCABULARY)
            with model.session() as session:
                np.testing.assert_array_equal(ask(session, text), right)


def test_types_of_numbers(folder: Path) -> None:
    text = as_tokens(tiny_transformers.ids(1, 20))
    for dtype, seen in (("float64", np.float64), ("bfloat16", np.float32), ("auto", np.float32)):
        with load_transformers(str(folder), dtype=dtype).session() as session:
            assert session.score([Query(0, text, NO_TOKENS)])[0][0].dtype == seen


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations(folder: Path, attention: str) -> None:
    model = load_transformers(str(folder), attn_implementation=attention)
    assert model.mode == "together"
    assert model.module.config._attn_implementation == attention


def test_ends_of_text_are_collected() -> None:
    made = tiny_transformers.module("llama", eos_token_id=5)
    made.generation_config.eos_token_id = [6, 7]
    model = TransformersModel(made, tiny_transformers.tokenizer())
    assert model.eos_ids == {5, 6, 7, tiny_transformers.tokenizer().eos_token_id}


def test_ids_without_a_token_are_never_emitted() -> None:
    """A vocabulary padded to a round number, with large logits at the padding (B22)."""
    made = tiny_transformers.module("llama", vocab_size=320)
    with torch.no_grad():
        made.lm_head.weight[tiny_transformers.VOCABULARY :] *= 50
    model = TransformersModel(made, tiny_transformers.tokenizer())
    assert model.vocab_size == len(tiny_transformers.tokenizer())
    with model.session() as session:
        assert ask(session, [1, 2, 3]).shape == (1, model.vocab_size)
    holes = tiny_transformers.LetterTokenizer("ab")
    holes.get_vocab()["z"] = 4
    model = TransformersModel(tiny_transformers.module("llama", vocab_size=5), holes)
    with model.session() as session:
        row = ask(session, [0, 1])[0]
    assert np.isneginf(row).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("transformers:", "names no model; use transformers:DIRECTORY_OR_HUB_NAME"),
        ("no such model!", "unknown: neither a directory nor a name on a hub; use one of: smollm2-135m"),
        ("vllm:thing", "unknown"),
    ],
)
def test_names_that_mean_nothing(spec: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        load(spec)


def test_wrong_places(tmp_path: Path) -> None:
    for spec, match in (
        (str(tmp_path), "holds no config.json; give a directory that save_pretrained wrote"),
        ("./nowhere/at/all", "does not exist; give a directory, or a hub's name"),
    ):
        with pytest.raises(ModelLoadError, match=match):
            load(f"transformers:{spec}")
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    with pytest.raises(ModelLoadError, match=r"is a file; give the directory"):
        load(f"transformers:{file}")


def test_a_hub_name_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ModelLoadError, match=r"^nobody/nothing is no directory, and no model .* check the name"
    ) as caught:
        load("nobody/nothing")
    assert "\n" not in str(caught.value)


def test_half_a_checkpoint(copied: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = copied / "model.safetensors"
    whole = weights.read_bytes()
    for size in (len(whole) // 2, 100, 0):
        weights.write_bytes(whole[:size])
        with pytest.raises(ModelLoadError, match="download it again") as caught:
            load(str(copied))
        assert "\n" not in str(caught.value)
    weights.write_bytes(whole)
    tensors = load_file(weights)
    left = {name: each for name, each in tensors.items() if "layers.1" not in name}
    save_file(left, weights, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lacks 9 of its weights \(model.layers.1"):
        load(str(copied))
    shapes = dict(tensors)
    shapes["model.norm.weight"] = torch.zeros(3)
    save_file(shapes, weights, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"has another shape of model\.norm\.weight"):
        load(str(copied))
    weights.unlink()
    with pytest.raises(ModelLoadError, match="download it again"):
        load(str(copied))


def test_a_config_that_is_no_config(copied: Path) -> None:
    (copied / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="cannot load"):
        load(str(copied))
    (copied / "config.json").write_text(json.dumps({"model_type": "not-a-model"}))
    with pytest.raises(ModelLoadError, match="update transformers"):
        load(str(copied))


def test_a_tokenizer_of_another_model(copied: Path) -> None:
    made = tiny_transformers.module("llama", vocab_size=4000)
    made.save_pretrained(copied)
    with pytest.raises(ModelLoadError, match="has 300 ids and the model 4000; they do not belong together"):
        load(str(copied))


def test_no_tokenizer_at_all(copied: Path) -> None:
    for each in copied.glob("tokenizer*"):
        each.unlink()
    with pytest.raises(ModelLoadError, match="cannot load"):
        load(str(copied))


def test_devices(folder: Path) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match=r"device 'cuda' cannot be used: .*; use device=\"cpu\""):
            load(str(folder), device="cuda")
    with pytest.raises(UsageError, match="device 'abacus' is unknown"):
        load(str(folder), device="abacus")


def test_options_out_of_range(folder: Path) -> None:
    for options, match in (
        ({"dtype": "float8"}, "dtype 'float8' is unknown; use one of: auto, float32"),
        ({"threads": 0}, "threads 0 is not positive"),
        ({"context_length": 0}, "context_length 0 is not positive"),
        ({"context_length": 10**6}, "exceeds the 720 tokens"),
        ({"flash_attention": True}, r"has no option flash_attention .*dtype, device"),
    ):
        with pytest.raises(UsageError, match=match):
            load(str(folder), **options)
    with pytest.raises(ModelLoadError, match="cannot load"):
        load(str(folder), attn_implementation="telepathy")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried")])
def test_out_of_memory(folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fails)
    with pytest.raises(ModelLoadError, match=r"no memory for .*; use a smaller dtype"):
        load(str(folder))


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=300)
    made = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(ModelLoadError, match="has an encoder"):
        TransformersModel(made, tiny_transformers.tokenizer())


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"LlamaModel.* has no language-model head; use AutoModelForCausalLM"):
        TransformersModel(tiny_transformers.module("llama").model, tiny_transformers.tokenizer())


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_a_missing_library_is_named(folder: Path, absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingDependencyError, match=rf"need {absent}; run: pip install"):
        load(f"transformers:{folder}")
    with pytest.raises(MissingDependencyError, match=r"is taken for a transformers model; .*or use one of: smollm2"):
        load("smolm2")


def test_nothing_is_printed_while_loading(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(str(folder)).close()
    assert capfd.readouterr() == ("", "")
