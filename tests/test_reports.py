"""What went wrong in other engines, as checks on whole requests; each says where it was seen."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from draftproof.divergence import find_divergence
from draftproof.draft import Drafter, ModelDrafter, NgramDrafter, NullDrafter, SuffixDrafter
from draftproof.engine import Engine
from draftproof.errors import BackendError, ProcessorError
from draftproof.models.base import Model, Query, Rows, Session
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.toy import ToyModel
from draftproof.request import Request
from draftproof.sampling import Sampler
from draftproof.text import TextStream
from draftproof.types import Tokens, as_tokens
from tests.doubles import FailingDrafter, FlakyModel, FunctionDrafter, oracle_drafter, random_drafter, scripted_model
from tests.models import gguf_file

GREEDY = Sampler(temperature=0)
TARGET = ToyModel.random(9, seed=5, order=2)

PROPOSERS: dict[str, Callable[[ToyModel], Drafter]] = {
    "none": lambda target: NullDrafter(),
    "ngram": lambda target: NgramDrafter(),
    "suffix": lambda target: SuffixDrafter(),
    "model": lambda target: ModelDrafter(target),
    "custom": lambda target: oracle_drafter(target),
}


def plain(model: Model, prompt: Sequence[int], sampler: Sampler = GREEDY, **options: object) -> list[int]:
    return Engine(model, NullDrafter(), sampler=sampler).generate(list(prompt), **options).tokens


class ReadingModel(Model):
    """Notes how many tokens of text each pass read that its session did not hold."""

    def __init__(self, inner: ToyModel) -> None:
        self.inner = inner
        self.name, self.vocab_size, self.context_length = inner.name, inner.vocab_size, inner.context_length
        self.eos_ids, self.tokenizer = inner.eos_ids, inner.tokenizer
        self.read: list[int] = []

    def session(self, slots: int = 1) -> Session:
        return _ReadingSession(self, slots)


class _ReadingSession(Session):
    model: ReadingModel

    def __init__(self, model: ReadingModel, slots: int) -> None:
        super().__init__(model, slots)
        self._inner = model.inner.session(slots)

    def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        self.model.read += [len(each.tokens) - length for each, length in zip(queries, keep, strict=True)]
        return self._inner.score(queries)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_model_that_drafts_for_itself_is_right_from_the_first_block_to_the_last(k: int) -> None:
    # https://github.com/lablup/mlxcel/issues/994 : the draft's cache was cut by the wrong count, or kept a hole.
    # https://github.com/vllm-project/vllm-metal/pull/721 : the first draft after the prompt was a token behind.
    draft = ReadingModel(TARGET)
    engine = Engine(TARGET, ModelDrafter(draft), sampler=GREEDY, num_draft_tokens=k)
    prompt = [1, 2, 3]
    for turn in range(3):
        already = len(draft.read)
        steps = list(engine.stream(prompt, max_tokens=60))
        assert steps[0].num_draft_tokens == k
        assert all(step.num_accepted_tokens == step.num_draft_tokens for step in steps)
        # All drafted tokens accepted: the last of them and the bonus are new to the draft model, nothing else is.
        assert max(draft.read[already + 1 :]) <= 2
        assert draft.read[already] <= (3 if turn == 0 else 6)
        assert steps[-1].completion is not None
        prompt = [*prompt, *steps[-1].completion.tokens, 4]


@pytest.mark.parametrize("every", [2, 3, 4, 5])
def test_a_draft_model_that_was_wrong_reads_the_correction_and_no_more(every: int) -> None:
    # https://github.com/lablup/mlxcel/issues/994

    def table(tokens: Tokens) -> np.ndarray:
        logits = TARGET.table(tokens)
        return -logits if len(tokens) % every == 0 else logits

    draft = ReadingModel(ToyModel(table, 9))
    engine = Engine(TARGET, ModelDrafter(draft), sampler=GREEDY, num_draft_tokens=4)
    found = engine.generate([1, 2, 3], max_tokens=60)
    assert found.tokens == plain(TARGET, [1, 2, 3], max_tokens=60)
    assert 0 < found.counts.num_accepted_tokens < found.counts.num_draft_tokens
    assert max(draft.read[1:]) <= 2


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("cap", [0, 1, 2, 3, 5])
def test_no_proposer_goes_beyond_max_tokens(proposer: str, cap: int) -> None:
    # https://github.com/huggingface/transformers/pull/46993 : the cap was compared with the wrong length.
    model = scripted_model([1, 2, 3], 9, 5)
    engine = Engine(model, PROPOSERS[proposer](model), sampler=GREEDY, num_draft_tokens=8)
    steps = list(engine.stream([1, 2, 3] * 3, max_tokens=cap))
    assert [token for step in steps for token in step.tokens] == [1, 2, 3, 1, 2][:cap]
    completion = steps[-1].completion
    assert completion is not None
    assert (completion.finish_reason, completion.usage.completion_tokens) == ("length", cap)


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("place", range(7))
def test_an_end_inside_a_block_ends_the_text_for_every_proposer(proposer: str, place: int) -> None:
    # https://github.com/huggingface/transformers/issues/47912 : only the last token of a block was looked at.
    text = [1, 2, 3, 4, 5, 6, 7]
    text[place] = 8
    model = scripted_model(text, 14, 10, eos_ids=[8, 9])
    engine = Engine(model, PROPOSERS[proposer](model), sampler=GREEDY, num_draft_tokens=6)
    steps = list(engine.stream(text * 2, max_tokens=30))
    assert [token for step in steps for token in step.tokens] == text[: place + 1]
    assert steps[-1].finish_reason == "stop"
    assert steps[-1].completion is not None
    counts = steps[-1].completion.counts
    assert counts.num_emitted_tokens == place + 1
    assert counts.num_accepted_tokens <= place + 1


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("prompt", [[2, 4, 6, 8, 4, 6], [3], [3, 3], [5] * 20, [1, 2, 3, 3], [7, 6, 5, 4]])
def test_prompt_lookup_needs_no_end_of_sequence_and_no_match(prompt: list[int], k: int) -> None:
    # https://github.com/huggingface/transformers/pull/46790
    for drafter in ("ngram", "suffix"):
        found = Engine(TARGET, drafter, sampler=GREEDY, num_draft_tokens=k).generate(prompt, max_tokens=12)
        assert found.tokens == plain(TARGET, prompt, max_tokens=12)
        assert found.drafter_error is None


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_a_draft_of_one_token_is_judged_by_the_row_before_it(drafter: str) -> None:
    # https://github.com/ohdearquant/lattice/issues/243 : drafts of length 1 were always accepted.
    def table(tokens: Tokens) -> np.ndarray:
        logits = np.zeros(40)
        logits[len(tokens) + 10] = 9.0  # a text without a repetition; no two rows agree
        return logits

    model = ToyModel(table, 40)
    for k in (1, 4):
        found = Engine(model, drafter, sampler=GREEDY, num_draft_tokens=k).generate([7, 7, 7], max_tokens=20)
        assert found.tokens == list(range(13, 33))
        assert found.counts.num_draft_tokens > 0
        assert found.counts.num_accepted_tokens == 0


def test_corrections_of_a_batch_go_to_the_request_they_belong_to() -> None:
    # https://github.com/Dao-AILab/flash-attention/pull/2779 : rejections at different places were crossed.
    texts = {0: [3, 7, 1], 1: [8, 1, 1], 2: [3, 4, 9]}
    drafts = {0: [3, 5], 1: [3, 4], 2: [3, 4]}

    def table(tokens: Tokens) -> np.ndarray:
        logits = np.zeros(12)
        logits[texts[int(tokens[0])][min(len(tokens) - 1, 2)]] = 9.0
        return logits

    drafter = FunctionDrafter(lambda tokens: drafts[int(tokens[0])] if len(tokens) == 1 else [])
    for rule in ("token", "coupled"):
        engine = Engine(ToyModel(table, 12), drafter, rule, Sampler(top_p=0.9), 2)
        steps = list(engine.stream_batch([[0], [1], [2]], max_tokens=3))
        assert [(step.index, step.tokens) for step in steps[:3]] == [(0, [3, 7]), (1, [8]), (2, [3, 4, 9])]


@pytest.mark.parametrize("temperature", [1e-10, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rule", ["token", "coupled"])
def test_a_hot_draft_for_a_greedy_target_leaves_the_greedy_text(temperature: float, rule: str) -> None:
    # https://github.com/vllm-project/vllm/pull/27077 : draft and target decided differently what is greedy.
    for zero in (0.0, 1e-10, 1e-6):
        drafter = ModelDrafter(TARGET, Sampler(temperature=temperature))
        found = Engine(TARGET, drafter, rule, Sampler(temperature=zero), 3).generate([1, 2], max_tokens=30)
        assert found.tokens == plain(TARGET, [1, 2], max_tokens=30)


@pytest.mark.parametrize("rule", ["token", "coupled"])
@pytest.mark.parametrize("wrong", [1, 2, 3, 0])
def test_a_processor_that_remembers_sees_each_place_of_the_text_once(rule: str, wrong: int) -> None:
    # https://github.com/osaurus-ai/vmlx-swift/issues/357 : it saw one token doubled, and rejected drafts for ever.
    def seen_with(drafter: Drafter) -> tuple[list[list[int]], list[int]]:
        seen: list[list[int]] = []

        def record(tokens: Tokens, logits: np.ndarray) -> np.ndarray:
            seen.append(tokens.tolist())
            logits[tokens[-1]] -= 0.1 * len(seen)
            return logits

        engine = Engine(TARGET, drafter, rule, Sampler(temperature=0, processors=[record]), 4)
        return seen, engine.generate([1, 2], max_tokens=25).tokens

    expected, text = seen_with(NullDrafter())
    assert expected == [[1, 2, *text[:place]] for place in range(25)]
    assert seen_with(oracle_drafter(TARGET, wrong)) == (expected, text)


def test_a_text_goes_on_after_a_stop_string_as_if_there_had_been_none() -> None:
    # https://github.com/vllm-project/vllm-ascend/issues/13608 : discarded draws shifted later ones.
    whole = Engine(TARGET, "none").generate([1, 2], seed=3, max_tokens=40)
    knows = FunctionDrafter(lambda tokens: whole.tokens[len(tokens) - 2 :])
    engine = Engine(TARGET, knows, num_draft_tokens=16)
    stop = next(whole.text[i : i + 2] for i in range(6, 30) if whole.text.index(whole.text[i : i + 2]) == i)
    head = engine.generate([1, 2], seed=3, max_tokens=40, stop=stop)
    assert head.finish_reason == "stop"
    assert 6 < len(head.tokens) < 40
    assert head.text == whole.text[: whole.text.index(stop)]
    tail = engine.generate([1, 2, *head.tokens], seed=3, max_tokens=40 - len(head.tokens))
    assert head.tokens + tail.tokens == whole.tokens


def test_requests_without_a_seed_do_not_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    # https://github.com/vllm-project/vllm-ascend/issues/13608 : at low concurrency all samples were identical.
    fresh = itertools.count()
    monkeypatch.setattr("draftproof.noise.secrets.randbits", lambda bits: next(fresh))
    engine = Engine(TARGET, "suffix")
    count = 400
    drawn = [engine.generate([1, 2], max_tokens=1).tokens[0] for _ in range(count)]
    law = TARGET.law([1, 2])
    shares = np.bincount(drawn, minlength=9) / count
    assert np.all(np.abs(shares - law) < 4.5 * np.sqrt(law * (1 - law) / count))


@pytest.mark.parametrize("place", ["target", "processor", "drafter", "caller"])
def test_what_failed_in_the_third_round_leaves_no_trace(place: str) -> None:
    # https://github.com/ohdearquant/lattice/issues/282 : the roll-back ran on the success path only.
    passes = itertools.count(1)

    def fails(queries: Sequence[Query]) -> bool:
        # The third pass, and its repetition for the request alone.
        return place == "target" and next(passes) in (3, 4)

    def processor(tokens: Tokens, logits: np.ndarray) -> np.ndarray:
        if place == "processor" and next(passes) == 3:
            raise KeyError("once")
        return logits

    drafter: Drafter = FailingDrafter("propose", after=2) if place == "drafter" else random_drafter(9)
    engine = Engine(FlakyModel(TARGET, fails), drafter, sampler=Sampler(processors=[processor]), num_draft_tokens=3)
    expected = plain(TARGET, [1, 2], Sampler(), seed=4, max_tokens=30)
    if place == "target":
        with pytest.raises(BackendError):
            engine.generate([1, 2], seed=4, max_tokens=30)
    elif place == "processor":
        with pytest.raises(ProcessorError, match="once"):
            engine.generate([1, 2], seed=4, max_tokens=30)
    elif place == "drafter":
        assert "no luck" in str(engine.generate([1, 2], seed=4, max_tokens=30).drafter_error)
    else:
        for rounds, _ in enumerate(engine.stream([1, 2], seed=4, max_tokens=30)):
            if rounds == 2:
                break
    assert engine.generate([1, 2], seed=4, max_tokens=30).tokens == expected


def test_leaving_one_stream_never_touches_another() -> None:
    # https://github.com/am17an/llama.cpp/issues/20 : cancels that crossed a re-used slot hit its next request.
    engine = Engine(TARGET, "suffix", max_batch_size=2, num_draft_tokens=3)
    expected = plain(TARGET, [2], Sampler(), seed=2, max_tokens=90)
    staying = engine.stream([2], seed=2, max_tokens=90)
    found = list(next(staying).tokens)
    for i in range(12):
        leaving = engine.stream([i % 9], seed=i, max_tokens=90)
        for _ in range(i % 3):
            next(leaving)
        found += next(staying).tokens
        leaving.close()  # type: ignore[attr-defined]
    found += [token for step in staying for token in step.tokens]
    assert found == expected
    assert not any(engine._running)


def test_streams_left_by_several_threads_leave_all_places_free() -> None:
    # https://github.com/am17an/llama.cpp/issues/20 : a slot was never released.
    engine = Engine(TARGET, "suffix", max_batch_size=4, num_draft_tokens=8)

    def leave_early(thread: int) -> None:
        for i in range(12):
            stream = engine.stream([thread, i % 9], seed=i, max_tokens=400)
            for _ in range(i % 3):
                next(stream)
            stream.close()  # type: ignore[attr-defined]

    threads = [threading.Thread(target=leave_early, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(engine._running)
    assert engine.generate([1], seed=1, max_tokens=30).tokens == plain(TARGET, [1], Sampler(), seed=1, max_tokens=30)


SMILE = "😀".encode()
PIECES = [b"a", SMILE[:2], SMILE[2:], b"b ", b"", b"S", b"T"]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("end", ["length", "eos", "stop", "cancel"])
@pytest.mark.parametrize("k", [0, 1, 8])
def test_a_stream_is_the_whole_text_however_it_ends(count: int, end: str, k: int) -> None:
    # https://github.com/osaurus-ai/vmlx-swift/pull/148 : the end of every answer was missing, or all of a short one.
    body = ([0, 1, 2, 3] * 8)[:count]
    model = scripted_model([*body, *([4] if end == "eos" else [5, 6])], 1, 7, eos_ids=[4], pieces=PIECES)
    engine = Engine(model, oracle_drafter(model), sampler=GREEDY, num_draft_tokens=k)
    options: dict[str, object] = {"max_tokens": count if end == "length" else 60}
    if end == "stop":
        options["stop"] = "ST"
    text = model.tokenizer.decode(body)
    stream = engine.stream([0], **options)
    if end == "cancel":
        shown = next(stream).text
        stream.close()  # type: ignore[attr-defined]
        assert model.tokenizer.decode([*body, 5, 6] * 9).startswith(shown)
        return
    steps = list(stream)
    assert steps[-1].completion is not None
    assert "".join(step.text for step in steps) == steps[-1].completion.text == text
    assert text.count("�") == (count % 4 == 2)
    if end != "stop":  # after which half a character turns out to be none before the stop is complete
        assert "�" not in "".join(step.text for step in steps[:-1])


@pytest.mark.parametrize("stop", [(), ("STOP",), ("�" * 9 + "x",)])
def test_invalid_bytes_flow_whatever_might_stop_them(stop: tuple[str, ...]) -> None:
    # https://github.com/sgl-project/sglang/pull/34852 : text that ends in U+FFFD was held back for ever.
    text = TextStream(stop)
    shown = []
    for _ in range(500):
        assert not text.add(b"\xff")
        shown.append(text.take())
    # No more is ever held back than what may become the stop string.
    behind = max((len(each) - 1 for each in stop), default=0)
    assert 500 - behind <= len("".join(shown)) <= 500
    assert all(shown[behind + 1 :])
    text.finish()
    assert "".join(shown) + text.take() == "�" * 500


@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_sliding_window_survives_rejected_drafts(tmp_path: Path, k: int) -> None:
    # https://github.com/ml-explore/mlx-lm/issues/1423 : a window's cache could not be rolled back once it had wrapped.
    prompt = as_tokens(np.random.default_rng(k).integers(5, gguf_file.VOCABULARY, 6))
    with LlamaCppModel(gguf_file.write_gemma2(tmp_path / "window.gguf", window=8), context_length=256) as model:
        request = Request(prompt, max_tokens=40, ignore_eos=True)
        with Engine(model, NullDrafter(), sampler=GREEDY) as engine:
            expected = engine.generate(request).tokens
        right = FunctionDrafter(lambda tokens: [*expected[len(tokens) - 6 :][: len(tokens) % 3], *[7] * 8])
        with Engine(model, right, sampler=GREEDY, num_draft_tokens=k) as engine:
            found = engine.generate(request)
        assert found.counts.num_draft_tokens > found.counts.num_accepted_tokens
        # Weights in floats: a wide pass may round a tie the other way, and that alone.
        apart = find_divergence(model, GREEDY.bind(6, (), model.vocab_size), 0, prompt, expected, found.tokens)
        assert apart is None or apart.near_tie
