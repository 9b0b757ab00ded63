"""What every backend's session must do; a backend's test subclasses this and gives a `model` fixture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftproof.errors import UsageError
from draftproof.models.base import Model, Query, Rows, Session
from draftproof.types import NO_TOKENS, Tokens, as_tokens


def copied(rows: Rows) -> np.ndarray:
    """Rows kept beyond the next pass, `[draft + 1, vocab]`."""
    return np.stack([np.array(rows[i]) for i in range(len(rows))])


def ask(
    session: Session, tokens: Sequence[int] | Tokens, draft: Sequence[int] | Tokens = (), slot: int = 0
) -> np.ndarray:
    (rows,) = session.score([Query(slot, as_tokens(tokens), as_tokens(draft))])
    return copied(rows)


class SessionConformance:
    """Every test compares with a session that never saw anything else.

    Attributes:
        tolerance: largest difference of two logits that are the same by right; 0 means bit for bit.
        chunk: a length of text the backend cannot run in one go.
    """

    tolerance = 0.0
    chunk = 600

    @pytest.fixture
    def model(self) -> Model:
        raise NotImplementedError("give a model of at least 32 ids and a context longer than `chunk` + 100")

    @pytest.fixture
    def text(self, model: Model) -> Tokens:
        return as_tokens(np.random.default_rng(3).integers(0, model.vocab_size, self.chunk + 60))

    def fresh(self, model: Model, tokens: Sequence[int] | Tokens, draft: Sequence[int] | Tokens = ()) -> np.ndarray:
        with model.session() as session:
            return ask(session, tokens, draft)

    def same(self, got: np.ndarray, want: np.ndarray) -> None:
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=self.tolerance)

    def test_there_is_a_row_for_each_draft_token_and_one_more(self, model: Model, text: Tokens) -> None:
        with model.session() as session:
            for length in (0, 1, 5):
                (rows,) = session.score([Query(0, text[:9], text[9 : 9 + length])])
                assert len(rows) == length + 1
                for i in range(len(rows)):
                    assert np.asarray(rows[i]).shape == (model.vocab_size,)
                    assert np.issubdtype(rows[i].dtype, np.floating)
                for i in (-1, length + 1):
                    with pytest.raises(IndexError):
                        rows[i]

    def test_row_i_follows_i_draft_tokens(self, model: Model, text: Tokens) -> None:
        with model.session() as session:
            rows = ask(session, text[:12], text[12:17])
        for i in range(6):
            self.same(rows[i : i + 1], self.fresh(model, text[: 12 + i]))

    def test_a_session_is_repeatable(self, model: Model, text: Tokens) -> None:
        with model.session() as session:
            first = ask(session, text[:20], text[20:23])
            self.same(ask(session, text[:20], text[20:23]), first)
            self.same(ask(session, text[:20]), first[:1])

    @pytest.mark.parametrize("drafted", [1, 3, 8])
    def test_rejected_drafts_leave_no_trace(self, model: Model, text: Tokens, drafted: int) -> None:
        wrong = as_tokens((text + 1) % model.vocab_size)
        with model.session() as session:
            end = 10
            for accepted in [*range(drafted + 1), drafted, 0]:
                draft = np.concatenate([text[end : end + accepted], wrong[end + accepted : end + drafted]])
                rows = ask(session, text[:end], draft)
                self.same(rows, self.fresh(model, text[:end], draft))
                end += accepted + 1

    def test_any_history_equals_none(self, model: Model, text: Tokens) -> None:
        rng = np.random.default_rng(11)
        other = as_tokens(rng.integers(0, model.vocab_size, 60))
        with model.session() as session:
            for _ in range(25):
                end, drafted, shared = rng.integers(1, 50), rng.integers(0, 6), rng.integers(0, 50)
                tokens = np.concatenate([text[:shared], other[shared:]])[:end]
                draft = as_tokens(rng.integers(0, model.vocab_size, drafted))
                self.same(ask(session, tokens, draft), self.fresh(model, tokens, draft))

    def test_a_cached_prefix_is_found_and_changes_no_row(self, model: Model, text: Tokens) -> None:
        with model.session() as session:
            assert session.prefix_length(0, text[:30]) == 0
            ask(session, text[:30], text[30:34])
            assert session.prefix_length(0, text[:40]) == 34
            self.same(ask(session, text[:40]), self.fresh(model, text[:40]))

    def test_a_long_text_is_run_in_chunks(self, model: Model, text: Tokens) -> None:
        with model.session() as session:
            rows = ask(session, text[: self.chunk], text[self.chunk : self.chunk + 4])
            self.same(rows, self.fresh(model, text[: self.chunk], text[self.chunk : self.chunk + 4]))
            step_by_step = model.session()
            for end in range(50, self.chunk, 50):
                ask(step_by_step, text[:end])
            self.same(ask(step_by_step, text[: self.chunk], text[self.chunk : self.chunk + 4]), rows)
            step_by_step.close()

    def test_a_long_draft_is_run_in_chunks(self, model: Model, text: Tokens) -> None:
        with model.session() as session:
            rows = ask(session, text[:3], text[3 : self.chunk])
            assert len(rows) == self.chunk - 2
            for i in (0, 1, 100, self.chunk // 2, self.chunk - 4, self.chunk - 3):
                self.same(rows[i : i + 1], self.fresh(model, text[: 3 + i]))
            self.same(ask(session, text[:5]), rows[2:3])

    def test_slots_of_one_pass_do_not_touch_each_other(self, model: Model, text: Tokens) -> None:
        rng = np.random.default_rng(12)
        # Own texts, ragged drafts, any order, not all slots in every pass, and acceptance that differs (B23, B45).
        texts = [as_tokens(np.roll(text[:200], 17 * slot)) for slot in range(4)]
        ends = [3, 9, 17, 40]
        with model.session(slots=4) as session:
            for _ in range(8):
                chosen = rng.permutation(4)[: rng.integers(1, 5)].tolist()
                drafts = [as_tokens(rng.integers(0, model.vocab_size, rng.integers(0, 6))) for _ in chosen]
                queries = [
                    Query(slot, texts[slot][: ends[slot]], draft) for slot, draft in zip(chosen, drafts, strict=True)
                ]
                for rows, query in zip(session.score(queries), queries, strict=True):
                    self.same(copied(rows), self.fresh(model, query.tokens, query.draft))
                for slot in chosen:
                    ends[slot] += int(rng.integers(1, 5))

    def test_long_texts_in_several_slots(self, model: Model, text: Tokens) -> None:
        with model.session(slots=3) as session:
            queries = [
                Query(0, text[: self.chunk], text[:2]),
                Query(1, text[1:4], NO_TOKENS),
                Query(2, text[50 : self.chunk], text[:3]),
            ]
            for rows, query in zip(session.score(queries), queries, strict=True):
                self.same(copied(rows), self.fresh(model, query.tokens, query.draft))

    def test_every_slot_holds_a_whole_context(self, model: Model) -> None:
        full = as_tokens(np.random.default_rng(4).integers(0, model.vocab_size, model.context_length))
        with model.session(slots=2) as session:
            for slot in (0, 1):
                ask(session, full[:-3], full[-3:], slot=slot)
            rows = [ask(session, full[:-3], full[-3:], slot=slot) for slot in (0, 1)]
            self.same(rows[0], rows[1])
            with pytest.raises(UsageError, match="context"):
                ask(session, full, [0])
            self.same(ask(session, full[:4]), self.fresh(model, full[:4]))

    def test_the_caller_may_write_into_its_arrays(self, model: Model, text: Tokens) -> None:
        with model.session() as session:
            for length in (0, 3):
                tokens, draft = text[:12].copy(), text[12 : 12 + length].copy()
                ask(session, tokens, draft)
                tokens[4] = (tokens[4] + 1) % model.vocab_size
                draft[:] = tokens[:length]
                self.same(ask(session, tokens, draft), self.fresh(model, tokens, draft))

    def test_sessions_of_a_model_are_independent(self, model: Model, text: Tokens) -> None:
        with model.session() as one, model.session() as two:
            before = ask(one, text[:10], text[10:12])
            ask(two, text[20:60])
            self.same(ask(one, text[:10], text[10:12]), before)

    def test_malformed_queries_are_refused_and_the_session_lives_on(self, model: Model, text: Tokens) -> None:
        good = Query(0, text[:8], text[8:10])
        beyond = as_tokens([model.vocab_size])
        bad = [
            [Query(0, NO_TOKENS, text[:2])],
            [Query(2, text[:3], NO_TOKENS)],
            [Query(-1, text[:3], NO_TOKENS)],
            [good, good],
            [Query(0, beyond, NO_TOKENS)],
            [Query(0, as_tokens([-1]), NO_TOKENS)],
            [Query(0, text[:3], beyond)],
            [Query(0, text[:3], as_tokens([3, -7]))],
            [good, Query(1, beyond, NO_TOKENS)],
            [Query(0, np.zeros(model.context_length, np.int32), text[:1])],
        ]
        with model.session(slots=2) as session:
            before = copied(session.score([good])[0])
            for queries in bad:
                with pytest.raises(UsageError):
                    session.score(queries)
                assert session.prefix_length(0, text[:20]) == 10
                self.same(copied(session.score([good])[0]), before)
            assert session.score([]) == []

    def test_a_failed_pass_leaves_the_session_usable(
        self, model: Model, text: Tokens, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with model.session(slots=2) as session:
            ask(session, text[:10], text[10:14])
            ask(session, text[5:20], slot=1)
            forward = session._forward

            def fails_late(queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
                forward(queries, keep)
                raise RuntimeError("broken")

            for broken in (fails_late, lambda queries, keep: (_ for _ in ()).throw(RuntimeError("broken"))):
                with monkeypatch.context() as patch:
                    patch.setattr(session, "_forward", broken)
                    with pytest.raises(RuntimeError, match="broken"):
                        session.score([Query(0, text[:12], text[30:35]), Query(1, text[5:25], text[:3])])
                self.same(ask(session, text[:12], text[12:15]), self.fresh(model, text[:12], text[12:15]))
                self.same(ask(session, text[5:22], slot=1), self.fresh(model, text[5:22]))

    def test_closing_twice_is_harmless(self, model: Model, text: Tokens) -> None:
        session = model.session()
        ask(session, text[:4])
        session.close()
        session.close()
        with model.session() as other:
            ask(other, text[:4])
        other.close()

    def test_a_session_needs_a_slot(self, model: Model) -> None:
        with pytest.raises(UsageError, match="slots"):
            model.session(slots=0)
