"""Sessions of transformers models: the conformance suite for each kind of layer, and what is their own."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from draftproof.errors import ModelLoadError, UsageError
from draftproof.models.base import Model, Query
from draftproof.models.transformers import TransformersModel
from draftproof.models.transformers_cache import FIRST_CAPACITY, Layout, SlotCache, masks
from draftproof.models.transformers_session import CHUNK, SHORT
from draftproof.types import NO_TOKENS, Tokens, as_tokens
from tests.models import tiny_transformers
from tests.models.session_conformance import SessionConformance, ask, copied


@cache
def _built(kind: str, fields: tuple[tuple[str, Any], ...]) -> TransformersModel:
    return tiny_transformers.model(kind, **dict(fields))


class _Conformance(SessionConformance):
    # float32: sums in another order. The logits' spread is about 1.
    tolerance = 2e-3
    chunk = CHUNK + 100
    kind = ""
    fields: dict[str, Any] = {}  # noqa: RUF012
    mode = "together"

    @pytest.fixture
    def model(self) -> Model:
        model = _built(self.kind, tuple(self.fields.items()))
        assert model.mode == self.mode
        return model


class TestLlama(_Conformance):
    kind = "llama"


class TestGpt2(_Conformance):
    """Learnt positions, which end."""

    kind = "gpt2"


class TestGemma(_Conformance):
    """Layers with a window of 8 between layers without."""

    kind = "gemma"


class TestMistral(_Conformance):
    """All layers with a window of 8."""

    kind = "mistral"


class TestEager(_Conformance):
    kind = "gemma"
    fields = {"attn_implementation": "eager"}  # noqa: RUF012


class TestMamba(_Conformance):
    """Its layers go on from a state for one token only."""

    kind = "mamba"
    mode = "stepwise"


class TestConvolutionHybrid(_Conformance):
    kind = "lfm2"
    mode = "apart"


class TestLinearAttentionHybrid(_Conformance):
    kind = "qwen3_next"
    mode = "apart"


class TestApart(_Conformance):
    """An attention model whose requests run one after the other, with the model's own masks."""

    kind = "gemma"
    mode = "apart"

    @pytest.fixture
    def model(self) -> Model:
        model = tiny_transformers.model(self.kind)
        model.mode = "apart"
        return model


@pytest.mark.parametrize("kind", [*tiny_transformers.ATTENTION, *tiny_transformers.RECURRENT])
def test_rows_are_those_of_the_bare_model(kind: str) -> None:
    model = tiny_transformers.model(kind)
    text = as_tokens(tiny_transformers.ids(3, 60))
    with torch.inference_mode():
        right = model.module(torch.from_numpy(text.astype(np.int64))[None]).logits[0].numpy()
    with model.session(2) as session:
        for end in (3, 17, 40):
            one, two = session.score([Query(0, text[:end], text[end : end + 6]), Query(1, text[: end + 9], NO_TOKENS)])
            np.testing.assert_allclose(copied(one), right[end - 1 : end + 6], atol=2e-3)
            np.testing.assert_allclose(copied(two), right[end + 8 : end + 9], atol=2e-3)


@pytest.mark.parametrize("kind", ["llama", "gemma", "mistral"])
def test_a_batch_shares_calls_and_short_rows_cost_long_ones_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_transformers.model(kind)
    shapes: list[tuple[int, ...]] = []
    call = model.call

    def record(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return call(ids, *rest)

    monkeypatch.setattr(model, "call", record)
    text = as_tokens(tiny_transformers.ids(4, 200))
    with model.session(4) as session:
        # Reading prompts: a long one does not stretch the others' rows to its own length.
        session.score([Query(slot, text[:end], NO_TOKENS) for slot, end in enumerate((3, 9, 17, 150))])
        assert sorted(shapes) == [(1, 150), (3, 17)]
        shapes.clear()
        session.score([Query(slot, text[: end + 1], text[:slot]) for slot, end in enumerate((3, 9, 17, 150))])
        assert shapes == [(4, 4)]
        shapes.clear()
        session.score([Query(0, text[:5], NO_TOKENS)])
        assert shapes == [(1, 1)]


def test_idle_slots_between_busy_ones_are_left_alone() -> None:
    model = tiny_transformers.model("gemma")
    text = as_tokens(tiny_transformers.ids(5, 90))
    with model.session(8) as session:
        for slot in range(8):
            ask(session, text[slot : slot + 30], slot=slot)
        for busy in ([0, 7], [0, 1, 2, 4, 5, 6, 7], [3]):
            queries = [Query(slot, text[slot : slot + 31], text[:2]) for slot in busy]
            for rows, query in zip(session.score(queries), queries, strict=True):
                with model.session() as fresh:
                    np.testing.assert_allclose(copied(rows), ask(fresh, query.tokens, query.draft), atol=2e-3)
        for slot in range(8):
            assert session.prefix_length(slot, text[slot:]) >= 30
            with model.session() as fresh:
                expected = ask(fresh, text[slot : slot + 32])
            np.testing.assert_allclose(ask(session, text[slot : slot + 32], slot=slot), expected, atol=2e-3)


def test_a_mask_shows_what_a_layer_sees() -> None:
    model = tiny_transformers.model("gemma")
    cache = SlotCache(model.module.config, 2)
    layout = Layout([0, 1], [10, 3], 2, model.device)
    made = masks(cache, layout, None)
    assert set(made) == {"full_attention", "sliding_attention"}
    for row, start in enumerate(layout.starts):
        for new in range(2):
            place = start + new
            assert torch.nonzero(made["full_attention"][row, 0, new]).flatten().tolist() == list(range(place + 1))
            window = made["sliding_attention"][row, 0, new]
            low = layout.low(tiny_transformers.WINDOW)
            seen = (torch.nonzero(window).flatten() + low).tolist()
            assert seen == list(range(max(0, place - tiny_transformers.WINDOW + 1), place + 1))


def test_additive_masks_are_numbers() -> None:
    model = tiny_transformers.model("llama", attn_implementation="eager")
    assert model.additive_masks is torch.float32
    made = masks(SlotCache(model.module.config, 2), Layout([0, 1], [1, 0], 1, model.device), torch.float32)
    lowest = torch.finfo(torch.float32).min
    assert made[:, 0, 0].tolist() == [[0.0, 0.0], [0.0, lowest]]


def test_the_cache_grows() -> None:
    model = tiny_transformers.model("llama")
    text = as_tokens(tiny_transformers.ids(6, 3 * FIRST_CAPACITY))[: tiny_transformers.CONTEXT - 2]
    with model.session(2) as session, model.session() as fresh:
        ask(session, text[: FIRST_CAPACITY - 1], slot=1)
        got = ask(session, text, text[:2], slot=1)
        np.testing.assert_allclose(got, ask(fresh, text, text[:2]), atol=2e-3)


def test_what_a_broken_request_left_behind_does_not_reach_its_neighbours() -> None:
    """Cells beyond a text hold leftovers: they must not be NaN, or 0 times NaN would spread through a mask."""
    model = tiny_transformers.model("llama")
    text = as_tokens(tiny_transformers.ids(7, 60))
    with model.session(2) as session:
        session.score([Query(0, text[:40], text[40:50]), Query(1, text[:3], NO_TOKENS)])
        got = session.score([Query(0, text[:4], NO_TOKENS), Query(1, text[:5], text[5:8])])
        with model.session() as fresh:
            np.testing.assert_allclose(copied(got[1]), ask(fresh, text[:5], text[5:8]), atol=2e-3)


@pytest.mark.parametrize("kind", tiny_transformers.RECURRENT)
def test_a_recurrent_state_goes_back_however_often(kind: str) -> None:
    model = tiny_transformers.model(kind)
    text = as_tokens(tiny_transformers.ids(8, 120))
    wrong = as_tokens((text + 1) % 290)
    with model.session() as session:
        for end in range(2, 60, 2):
            got = ask(session, text[:end], wrong[end : end + 3])
            with model.session() as fresh:
                np.testing.assert_allclose(got, ask(fresh, text[:end], wrong[end : end + 3]), atol=2e-3)


@pytest.mark.parametrize("kind", tiny_transformers.RECURRENT)
def test_a_recurrent_state_survives_a_failed_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_transformers.model(kind)
    text = as_tokens(tiny_transformers.ids(9, 80))
    call = model.call
    with model.session(2) as session:
        ask(session, text[:20], text[40:43])
        calls = 0

        def fails(*arguments: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            logits = call(*arguments)
            if calls > 1:
                raise RuntimeError("broken")
            return logits

        monkeypatch.setattr(model, "call", fails)
        with pytest.raises(RuntimeError, match="broken"):
            session.score([Query(0, text[:40], text[:3]), Query(1, text[:40], text[:3])])
        monkeypatch.setattr(model, "call", call)
        for slot in (0, 1):
            with model.session() as fresh:
                expected = ask(fresh, text[:21], text[21:23])
            np.testing.assert_allclose(ask(session, text[:21], text[21:23], slot=slot), expected, atol=2e-3)


def test_a_prompt_of_a_stepwise_model_is_read_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_transformers.model("mamba")
    widths: list[int] = []
    call = model.call

    def record(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        widths.append(ids.shape[1])
        return call(ids, *rest)

    monkeypatch.setattr(model, "call", record)
    text = as_tokens(tiny_transformers.ids(10, 300))
    with model.session() as session:
        ask(session, text[:100])
        ask(session, text[:300])
        assert widths == [99, 1, 299, 1]


def test_a_closed_session_says_so(model_and_text: tuple[TransformersModel, Tokens]) -> None:
    model, text = model_and_text
    session = model.session()
    session.close()
    with pytest.raises(UsageError, match="is closed"):
        ask(session, text[:3])


def test_a_closed_model_says_so() -> None:
    model = tiny_transformers.model("llama")
    model.close()
    with pytest.raises(UsageError, match="is closed"):
        model.session()


@pytest.fixture
def model_and_text() -> tuple[TransformersModel, Tokens]:
    return tiny_transformers.model("llama"), as_tokens(tiny_transformers.ids(1, 40))


def test_rows_cannot_be_written(model_and_text: tuple[TransformersModel, Tokens]) -> None:
    model, text = model_and_text
    with model.session() as session:
        (rows,) = session.score([Query(0, text[:5], NO_TOKENS)])
        assert rows[0].dtype == np.float32
        with pytest.raises(ValueError, match="read-only"):
            rows[0][0] = 1.0


def test_a_row_leaves_the_device_only_when_asked_for(
    model_and_text: tuple[TransformersModel, Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = model_and_text
    fetched: list[int] = []
    host_row = model.host_row

    def record(logits: torch.Tensor) -> np.ndarray:
        fetched.append(1)
        return host_row(logits)

    monkeypatch.setattr(model, "host_row", record)
    with model.session() as session:
        (rows,) = session.score([Query(0, text[:5], text[5:9])])
        assert not fetched
        assert rows[1] is rows[1]
        assert len(fetched) == 1


def test_a_model_whose_cache_cannot_be_cut_is_refused_by_the_layer_s_name() -> None:
    class Indexed:
        pass

    made = tiny_transformers.module("llama")

    def caches(**options: Any) -> Any:
        cache = transformers.DynamicCache(**options)
        cache.layers[1] = Indexed()
        return cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftproof.models.transformers_cache.DynamicCache", caches)
        with pytest.raises(ModelLoadError, match="layer 1 keeps a Indexed"):
            TransformersModel(made, tiny_transformers.tokenizer())


@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_the_proof_takes_the_first_mode_that_is_right(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that goes wrong in a batch runs its requests apart; one that goes wrong there too is refused."""
    made = tiny_transformers.module("llama")
    call = TransformersModel.call
    broken = {2}

    def faulty(self: Any, ids: torch.Tensor, positions: Any, mask: Any, cache: Any, rows: int) -> torch.Tensor:
        # Positions that depend on what else is in the pass.
        if cache is not None and len(ids) in broken and int(positions.max()) > 5:
            if fault == "raises":
                raise TypeError("unexpected mask")
            positions = positions // 2
        return call(self, ids, positions, mask, cache, rows)

    monkeypatch.setattr(TransformersModel, "call", faulty)
    monkeypatch.setattr(TransformersModel, "_rounding", lambda self, probe: 1e-6)
    assert TransformersModel(made, tiny_transformers.tokenizer()).mode == "apart"
    broken.add(1)
    reason = "off by" if fault == "wrong" else "unexpected mask"
    with pytest.raises(ModelLoadError, match=rf"give a rejected draft back: .*{reason}.*LlamaForCausalLM.*SlotLayer"):
        TransformersModel(made, tiny_transformers.tokenizer())


def test_long_drafts_of_a_batch_run_alone() -> None:
    model = tiny_transformers.model("gemma")
    text = as_tokens(tiny_transformers.ids(11, 400))
    with model.session(2) as session:
        got = session.score([Query(0, text[:5], text[5 : SHORT + 30]), Query(1, text[:7], text[:2])])
        with model.session() as fresh:
            np.testing.assert_allclose(copied(got[0]), ask(fresh, text[:5], text[5 : SHORT + 30]), atol=2e-3)
            np.testing.assert_allclose(copied(got[1]), ask(fresh, text[:7], text[:2]), atol=2e-3)
