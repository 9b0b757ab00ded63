"""`draftproof generate`: what it prints, what it refuses, how it ends; run as users run it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

import draftproof as dp
from draftproof.cli.generate import _logprob_as_dict

RUN = [sys.executable, "-m", "draftproof"]


def run(arguments: Sequence[str], data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs the command line; standard input is empty unless data is given."""
    return subprocess.run([*RUN, *arguments], input=data or b"", capture_output=True, timeout=120, check=False)


def toy(*arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return run(["generate", *arguments, "--target", "toy:pair"], data)


def error_of(result: subprocess.CompletedProcess[bytes]) -> str:
    """Returns the one error line; there must be no traceback."""
    text = result.stderr.decode()
    assert "Traceback" not in text
    return text


def test_text_goes_to_standard_output_and_figures_to_standard_error() -> None:
    result = toy("abc", "--max-tokens", "20")
    expected = dp.Engine("toy:pair", "none", sampler=dp.Sampler(temperature=0)).generate("abc", max_tokens=20)
    assert result.returncode == 0
    assert result.stdout.decode() == expected.text + "\n"
    assert "20 tokens (length)" in result.stderr.decode()
    assert "tokens a pass" in result.stderr.decode()


def test_json_is_one_object_with_everything() -> None:
    result = toy("abcabc", "--max-tokens", "20", "--json", "--seed", "3", "--temperature", "0.9", "--logprobs", "2")
    found = json.loads(result.stdout)
    expected = dp.Engine("toy:pair", "none", sampler=dp.Sampler(temperature=0.9)).generate(
        "abcabc", max_tokens=20, seed=3
    )
    assert (found["text"], found["tokens"]) == (expected.text, expected.tokens)
    assert found["finish_reason"] == "length"
    assert found["usage"] == {
        "prompt_tokens": 6, "completion_tokens": 20, "cached_tokens": 0, "total_tokens": 26
    }  # fmt: skip
    assert {"num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"} < set(
        found["counts"]
    )
    assert {"mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram"} < set(found["counts"])
    assert {"time_to_first_token", "total", "target", "draft", "overhead"} < set(found["timings"])
    assert len(found["logprobs"]) == 20
    assert len(found["logprobs"][0]["top"]) == 2


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--temperature", "1"],
        ["--temperature", "1", "--drafter", "model:toy:pair-draft", "--num-draft-tokens", "3"],
    ],
)
def test_compare_prints_a_ratio_and_whether_the_texts_agree(options: list[str]) -> None:
    result = toy("abcabc", "--max-tokens", "30", "--compare", *options)
    text = error_of(result)
    assert result.returncode == 0
    assert "plain decoding" in text
    assert "x (medians" in text
    assert ("two samples" if "--drafter" in options else "the texts agree, all 30 tokens") in text
    found = json.loads(toy("abcabc", "--max-tokens", "30", "--compare", "--json", *options).stdout)["comparison"]
    assert found["speedup"] > 0
    assert found["same_text_expected"] == ("--drafter" not in options)


def test_the_prompt_may_come_from_standard_input() -> None:
    expected = toy("abc", "--max-tokens", "5").stdout
    assert toy("-", "--max-tokens", "5", data=b"abc").stdout == expected
    assert toy("--max-tokens", "5", data=b"abc").stdout == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["abc", "--max-tokens", "-1"], "max_tokens -1"),
        (["abc", "--temperature", "-1"], "temperature -1.0"),
        (["abc", "--temperature", "nan"], "temperature nan"),
        (["abc", "--top-p", "0"], "top_p 0.0"),
        (["abc", "--top-p", "1.5"], "top_p 1.5"),
        (["abc", "--min-p", "2"], "min_p 2.0"),
        (["abc", "--top-k", "-3"], "top_k -3"),
        (["abc", "--repetition-penalty", "0"], "repetition_penalty 0.0"),
        (["abc", "--num-draft-tokens", "-2"], "num_draft_tokens -2"),
        (["abc", "--num-draft-tokens", "many"], "'many'"),
        (["abc", "--drafter", "best"], "'best'"),
        (["abc", "--drafter", "model:toy:best"], "'best'"),
        (["abc", "--rule", "fast"], "'fast'"),
        (["abc", "--logit-bias", "3"], "ID=BIAS"),
        (["abc", "--logit-bias", "99=1"], "logit_bias [99]"),
        (["abc", "--stop", ""], "empty string"),
        (["abc", "--chat"], "chat template"),
        (["", "--max-tokens", "3"], "empty"),
        (["ABC", "--max-tokens", "3"], "'ABC'"),
        (["abc", "--threads", "2"], "threads"),
        (["abc", "--dtype", "bfloat16"], "dtype"),
        (["abc", "--draft-vocabulary", "fuzzy"], "auto, same, intersection, text"),
        (["abc", "--draft-vocabulary", "text"], "use it with --drafter model:SPEC"),
        (["abc", "--drafter", "self:layers=2"], "needs a transformers target"),
        (["abc", "--drafter", "self:q1"], "'self:q1'"),
        (["a" * 5000], "5000"),
    ],
)
def test_wrong_usage_is_one_line_with_a_remedy_and_exit_2(arguments: list[str], said: str) -> None:
    result = toy(*arguments)
    text = error_of(result)
    assert result.returncode == 2, text
    assert said in text
    assert text.splitlines()[-1].startswith("error: ")
    assert result.stdout == b""


@pytest.mark.parametrize("option", ["--drafter", "--rule", "--num-draft-tokens"])
def test_a_misspelt_choice_is_refused_before_a_model_is_loaded(option: str) -> None:
    result = run(["generate", "abc", "--target", "missing.gguf", option, "sufix"])
    assert result.returncode == 2
    assert "'sufix'" in error_of(result)
    assert "loading" not in error_of(result)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing.gguf", "missing.gguf"),
        ("toy:nothing", "'nothing'"),
        ("what:ever", "what:ever"),
        ("", "''"),
    ],
)
def test_an_unknown_target_is_refused(target: str, said: str) -> None:
    result = run(["generate", "abc", "--target", target])
    assert result.returncode == 2
    assert said in error_of(result)


def test_standard_input_that_is_not_utf8_is_refused() -> None:
    result = toy("-", data=b"ab\xffc")
    assert result.returncode == 2
    assert "0xff at 2" in error_of(result)
    empty = toy("-", data=b"")
    assert empty.returncode == 2
    assert "empty" in error_of(empty)


def test_an_argument_that_is_not_utf8_is_refused() -> None:
    result = subprocess.run(
        [*(part.encode() for part in RUN), b"generate", b"ab\xff", b"--target", b"toy:pair"],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "error: " in error_of(result)


def test_how_a_draft_model_of_another_vocabulary_drafts_is_printed_and_can_be_chosen() -> None:
    drafted = ["abc", "--max-tokens", "20", "--drafter", "model:toy:pair-draft"]
    plain = toy("abc", "--max-tokens", "20", "--drafter", "none")
    for options, said in (([], ""), (["--draft-vocabulary", "text"], "by text that the target's tokenizer reads")):
        result = toy(*drafted, *options)
        assert result.returncode == 0
        assert result.stdout == plain.stdout
        assert ("drafting with" in result.stderr.decode()) == bool(said)
        assert said in result.stderr.decode()


def test_max_tokens_0_is_an_empty_text() -> None:
    result = toy("abc", "--max-tokens", "0")
    assert result.returncode == 0
    assert result.stdout == b"\n"


def test_comparing_nothing_is_said() -> None:
    result = toy("abc", "--max-tokens", "0", "--compare")
    assert result.returncode == 0
    assert "nothing to compare" in error_of(result)
    assert json.loads(toy("abc", "--max-tokens", "0", "--compare", "--json").stdout)["comparison"]["speedup"] is None


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [*RUN, "generate", "abc", "--target", "toy:pair"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr.decode()
    assert "error: " in result.stderr.decode()


def test_a_terminal_that_cannot_show_a_character_shows_the_rest() -> None:
    result = subprocess.run(
        [*RUN, "explain", "--labels", "é,b", "--p", "0.5,0.5", "--q", "0.4,0.6"],
        capture_output=True, timeout=60, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_json_is_readable_whatever_the_terminal_can_show() -> None:
    result = subprocess.run(
        [*RUN, "generate", "abc", "--target", "toy:pair", "--max-tokens", "3", "--json"],
        input=b"", capture_output=True, timeout=60, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert json.loads(result.stdout.decode("ascii"))["usage"]["completion_tokens"] == 3


def test_an_impossible_token_has_no_logprob_in_json() -> None:
    found = _logprob_as_dict(dp.TokenLogprob(1, -0.5, [(1, -0.5), (0, -math.inf)]))
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "token": 1,
        "logprob": -0.5,
        "top": [[1, -0.5], [0, None]],
    }


@pytest.mark.parametrize(("closed", "code"), [("<&-", 2), ("2>&-", 0)])
def test_a_closed_stream_is_no_traceback(closed: str, code: int) -> None:
    prompt = "-" if code else "abc"
    result = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *RUN, "generate", prompt, "--target", "toy:pair", "--max-tokens", "3"],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == code
    assert b"Traceback" not in result.stderr + result.stdout
    assert (b"standard input is closed" in result.stderr) == bool(code)


def test_a_closed_pipe_ends_quietly() -> None:
    process = subprocess.Popen(
        [*RUN, "generate", "abc", "--target", "toy:pair", "--max-tokens", "4000"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(3)
    process.stdout.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 1
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_keeps_what_was_produced(as_json: bool) -> None:
    process = subprocess.Popen(
        [*RUN, "generate", "abc", "--target", "toy:slow", "--max-tokens", "4000", *(["--json"] if as_json else [])],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    if as_json:
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(2.0)
        shown = b""
    else:
        assert process.stdout is not None
        shown = process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    if as_json:
        found = json.loads(out)
        assert found["finish_reason"] == "abort"
        assert found["usage"]["completion_tokens"] == len(found["tokens"]) > 0
    else:
        assert len(shown + out) >= 5
        assert b"(abort)" in said


def test_version_and_help() -> None:
    assert run(["--version"]).stdout.decode() == f"draftproof {dp.__version__}\n"
    text = run(["generate", "--help"]).stdout.decode()
    for name in ("--num-draft-tokens", "--compare", "--top-p", "--seed"):
        assert name in text
    assert run(["nonsense"]).returncode == 2
