"""`draftproof explain`: what it prints and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from draftproof.cli.explain import explain
from draftproof.errors import UsageError

app = typer.Typer()
app.command()(explain)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def printed(*arguments: str) -> str:
    result = run(*arguments)
    if result.exception is not None:
        raise result.exception
    assert result.exit_code == 0
    return str(result.stdout)


def report(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(*arguments, "--json"))
    return found


WORKED = ("--p", "0.5,0.3,0.15,0.05", "--q", "0.6,0.2,0.1,0.1")


def _row(text: str, name: str) -> list[str]:
    """Returns the cells of the first row of numbers that begins with a name."""
    for line in text.splitlines():
        first, *cells = line.split() or [""]
        if first == name and cells and all(re.fullmatch(r"[-+]?\d[\d.]*|-", cell) for cell in cells):
            return cells
    raise AssertionError(f"no row {name} in:\n{text}")


def test_worked_example_token_by_token() -> None:
    text = printed(*WORKED)
    assert _row(text, "0") == ["0.5000", "0.6000", "0.8333", "0.5000", "0.5882", "0.0000", "0.5000"]
    assert _row(text, "1") == ["0.3000", "0.2000", "1.0000", "0.2000", "0.2353", "0.6667", "0.3000"]
    assert _row(text, "2") == ["0.1500", "0.1000", "1.0000", "0.1000", "0.1176", "0.3333", "0.1500"]
    assert _row(text, "3") == ["0.0500", "0.1000", "0.5000", "0.0500", "0.0588", "0.0000", "0.0500"]
    assert _row(text, "sum") == ["1.0000", "1.0000", "0.8500", "1.0000", "1.0000", "1.0000"]
    assert "accepted with probability 0.8500" in text
    assert "rejected with probability 0.1500" in text


def test_without_laws_it_explains_the_worked_example() -> None:
    assert printed() == printed(*WORKED)


def test_bars_show_what_p_and_q_share() -> None:
    lines = printed(*WORKED).splitlines()
    p0 = next(i for i, line in enumerate(lines) if re.match(r"0\s+p ", line))
    bars = [line.split()[-1] for line in lines[p0 : p0 + 4]]
    # The longest bar, q(0) = .6, is 40 wide: .5 shared and .1 only in q; then .2 shared and .1 only in p.
    assert bars == ["█" * 33, "█" * 33 + "░" * 7, "█" * 13 + "▒" * 7, "█" * 13]


def test_labels_are_printed_as_they_are() -> None:
    text = printed(*WORKED, "--labels", "the,[red]a[/red], cat,")
    for name in ("the", "[red]a[/red]", "' cat'", "''"):
        assert name in text


def test_json_is_one_object() -> None:
    found = report(*WORKED, "--labels", "a,b,c,d")
    assert found["acceptance"] == pytest.approx(0.85)
    assert [each["name"] for each in found["tokens"]] == ["a", "b", "c", "d"]
    assert [each["residual"] for each in found["tokens"]] == pytest.approx([0, 2 / 3, 1 / 3, 0])
    assert found["simulation"] is None


def test_simulation_is_compared_with_p_in_words() -> None:
    text = printed(*WORKED, "--simulate", "2000", "--seed", "5")
    assert "2000 runs of the procedure, seed 5" in text
    assert "these counts fit p" in text
    assert re.search(r"accepted 1[67]\d\d of 2000 drafts; expected 1700\.0", text)
    found = report(*WORKED, "--simulate", "2000", "--seed", "5")["simulation"]
    assert sum(found["counts"].values()) == 2000
    table = text[text.index("2000 runs") :]
    for token, count in found["counts"].items():
        p = [0.5, 0.3, 0.15, 0.05][int(token)]
        assert _row(table, token)[:3] == [f"{p:.4f}", f"{2000 * p:.1f}", str(count)]
    assert report(*WORKED, "--simulate", "2000", "--seed", "6")["simulation"]["counts"] != found["counts"]


def test_normalize_divides_by_the_sum() -> None:
    found = report("--p", "5,3,1.5,.5", "--q", "6,2,1,1", "--normalize")
    assert found["acceptance"] == pytest.approx(0.85)


def test_rounded_laws_need_no_flag() -> None:
    assert report("--p", "0.3333333,0.6666667", "--q", "0.5,0.5")["acceptance"] == pytest.approx(0.8333333)


def test_extreme_laws_are_printed() -> None:
    text = printed("--p", "1,0,0", "--q", "0,1,0")
    assert _row(text, "0") == ["1.0000", "0.0000", "-", "0.0000", "-", "1.0000", "1.0000"]
    assert _row(text, "2") == ["0.0000", "0.0000", "-", "0.0000", "-", "0.0000", "0.0000"]
    same = printed("--p", "0.5,0.5", "--q", "0.5,0.5")
    assert _row(same, "1") == ["0.5000", "0.5000", "1.0000", "0.5000", "0.5000", "-", "0.5000"]
    assert "1.0e-06" in printed("--p", "0.999999,0.000001", "--q", "0.5,0.5")


REFUSED = [
    (["--p", "0.5,x", "--q", "0.5,0.5"], "--p 0.5,x: 'x' is not a probability; give numbers from 0 to 1"),
    (["--p", "0.5,0.5", "--q", "0.5,,0.5"], "--q 0.5,,0.5: '' is not a probability"),
    (["--p", "-0.5,1.5", "--q", "0.5,0.5"], "--p -0.5,1.5: '-0.5' is not a probability"),
    (["--p", "nan,1", "--q", "0.5,0.5"], "--p nan,1: 'nan' is not a probability"),
    (["--p", "inf,1", "--q", "0.5,0.5"], "--p inf,1: 'inf' is not a probability"),
    (["--p", "0,0", "--q", "0.5,0.5"], "--p 0,0 sums to 0; at least one number must be positive"),
    (["--p", "0,0", "--q", "0.5,0.5", "--normalize"], "--p 0,0 sums to 0"),
    (["--p", "0.7,0.5", "--q", "0.5,0.5"], "--p 0.7,0.5 sums to 1.2, not to 1; correct it, or add --normalize"),
    (["--p", "0.5,0.5", "--q", "0.5,0.4"], "--q 0.5,0.4 sums to 0.9, not to 1"),
    (["--p", "0.5,0.5", "--q", "1"], "--p has 2 numbers and --q has 1; give as many"),
    (["--p", "", "--q", "1"], "--p is empty; give probabilities, for example --p 0.5,0.3,0.2"),
    (["--p", "1", "--q", "  "], "--q is empty"),
    (["--p", "0.5,0.5"], "--p 0.5,0.5 came without --q; give both laws"),
    (["--q", "0.5,0.5"], "--q 0.5,0.5 came without --p; give both laws"),
    ([*WORKED, "--labels", "a,b"], "--labels 'a,b' has 2 names for 4 tokens; give one for each"),
    ([*WORKED, "--simulate", "0"], "--simulate 0 is not a count of draws; give a positive one"),
    ([*WORKED, "--simulate", "-1"], "--simulate -1 is not a count of draws"),
    ([*WORKED, "--top", "0"], "--top 0 is not a count of tokens; give a positive one"),
    ([*WORKED, "--temperature", "0.5"], "--temperature acts on the laws of a model; add --target and --prompt"),
    ([*WORKED, "--drafter", "ngram"], "--drafter acts on the laws of a model"),
    (["--prompt", "abc"], "--prompt 'abc' came without a model; add --target"),
    (["--target", "toy:pair"], "--target toy:pair came without a text; add --prompt"),
    (["--target", "toy:pair", "--prompt", ""], "--prompt is empty; give at least one character"),
    (["--target", "toy:pair", "--prompt", "a", *WORKED], "--p does not go with --target toy:pair"),
    (["--target", "toy:pair", "--prompt", "a", "--normalize"], "--normalize does not go with --target toy:pair"),
    (["--target", "toy:pear", "--prompt", "a"], "toy model 'pear' is unknown; use one of: pair"),
    (["--target", "toy:pair", "--prompt", "a", "--drafter", "foo"], "drafter 'foo' is unknown; use one of:"),
    (["--target", "toy:pair", "--prompt", "A"], "text 'A' has b'A', which this toy lacks"),
    (["--target", "toy:pair", "--prompt", "a", "--temperature", "-1"], "temperature -1.0 is out of range; use 0"),
    (["--target", "toy:pair", "--prompt", "a", "--top-p", "0"], "top_p 0.0 is out of range; use 0 < top_p <= 1"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(each[0][-4:]) for each in REFUSED])
def test_bad_input_is_named_with_its_remedy(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert result.stdout == ""


def test_a_count_that_is_no_number_is_refused_by_the_parser() -> None:
    assert run(*WORKED, "--simulate", "many").exit_code == 2


def test_bad_input_exits_with_2_and_one_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "draftproof", "explain", "--p", "0.7,0.5", "--q", "0.5,0.5"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: --p 0.7,0.5 sums to 1.2, not to 1; correct it, or add --normalize\n"


POSITION = ("--target", "toy:pair", "--prompt", "abcabcab")


def test_a_position_with_a_draft_model() -> None:
    text = printed(*POSITION, "--drafter", "model:toy:pair-draft", "--top", "3", "--simulate", "500")
    for part in (
        "target: toy:pair\n",
        "drafter: model:toy:pair-draft\n",
        "prompt: abcabcab\n",
        "23 others",
        "500 runs",
    ):
        assert part in text
    found = report(*POSITION, "--drafter", "model:toy:pair-draft", "--top", "3")
    assert [each["name"] for each in found["tokens"]][3] == "23 others"
    assert sum(each["p"] for each in found["tokens"]) == pytest.approx(1.0)
    assert sum(each["q"] for each in found["tokens"]) == pytest.approx(1.0)
    assert found["acceptance"] == pytest.approx(sum(each["accepted"] for each in found["tokens"]))
    shown = [each["p"] for each in found["tokens"][:3]]
    assert shown == sorted(shown, reverse=True)


def test_a_position_with_a_lookup_is_a_point_mass() -> None:
    found = report(*POSITION, "--drafter", "suffix", "--top", "3")
    certain = next(each for each in found["tokens"] if each["name"] == "c")
    assert certain["q"] == 1.0
    assert found["acceptance"] == pytest.approx(certain["p"])


def test_sampling_options_act_on_both_laws() -> None:
    plain = report(*POSITION, "--drafter", "model:toy:pair-draft", "--top", "30")
    cut = report(*POSITION, "--drafter", "model:toy:pair-draft", "--top", "30", "--top-k", "2", "--temperature", "2")
    assert len(plain["tokens"]) == 26
    for law in ("p", "q"):
        assert sum(each[law] > 0 for each in cut["tokens"]) == 2
    greedy = report(*POSITION, "--temperature", "0")
    assert max(each["p"] for each in greedy["tokens"]) == 1.0


def test_a_drafter_may_have_nothing_to_say() -> None:
    text = printed("--target", "toy:pair", "--prompt", "abcd", "--top", "4")
    assert "proposes nothing here" in text
    assert "22 others" in text
    found = report("--target", "toy:pair", "--prompt", "abcd", "--top", "4")
    assert found["draft"] is None
    assert len(found["tokens"]) == 5
    assert sum(each["p"] for each in found["tokens"]) == pytest.approx(1.0)
