"""`draftproof audit`: what it prints, its exit statuses, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from draftproof.cli.audit import app
from draftproof.errors import UsageError

TOY = ("engine", "--target", "toy:pair", "--drafter", "model:toy:pair-draft", "--noise", "0", "--tokens", "200")


@pytest.fixture(autouse=True)
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("abc\nde\n")
    return file


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "audited_module.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "audited_module", raising=False)


def test_an_exact_engine(prompts: Path) -> None:
    result = run(*TOY, "--prompts", str(prompts))
    assert result.exit_code == 0
    assert "no evidence against" in result.stdout
    assert "would be found" in result.stdout


def test_json_and_page(prompts: Path, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    result = run(*TOY, "--prompts", str(prompts), "--json", "--html", str(html))
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["verdict"] == "no evidence against"
    assert found["numbers"]["tokens"] == 200
    assert "<svg" in html.read_text()


def test_a_backend(prompts: Path) -> None:
    result = run("backend", "--target", "toy:pair", "--prompts", str(prompts), "--tokens", "40", "--widths", "2,5")
    assert result.exit_code == 0
    assert "toy:pair: exact" in result.stdout
    assert "argmax" in result.stdout


@pytest.mark.usefixtures("unchecked")
def test_a_wrong_rule_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, monkeypatch, "from draftproof.audit.zoo import BUGS\nwrong = BUGS[1]\n")
    result = run("rule", "audited_module:wrong")
    assert result.exit_code == 1
    assert "not exact" in result.stdout
    assert "nearest known bug: the residual is p without the rejected token (family: residual)" in result.stdout


def test_any_engine_by_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: Path) -> None:
    module(
        tmp_path,
        monkeypatch,
        "def constant(prompt, max_tokens, seed):\n    return [3] * max_tokens\n"
        "def fails(prompt, max_tokens, seed):\n    raise OSError('gone')\n",
    )
    options = ("--target", "toy:pair", "--prompts", str(prompts))
    assert run("engine", "--call", "audited_module:constant", *options).exit_code == 1
    failed = run("engine", "--call", "audited_module:fails", *options)
    assert failed.exit_code == 3
    assert "gone" in failed.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rule", "nothing"), "module:function"),
        (("rule", "draftproof:verify", "--convention", "odd"), "convention 'odd'"),
        (("engine", "--library", "odd"), "--library 'odd'"),
        (("engine", "--target", "toy:pair", "--library", "transformers"), "needs a target of transformers"),
        (("engine", "--drafter", "odd"), "drafter 'odd'"),
        (("engine", "--rule", "odd"), "rule 'odd'"),
        (("engine", "--num-draft-tokens", "few"), "'few'"),
        (("engine", "--prompts", "/nowhere"), "cannot be read"),
        (("backend", "--widths", "2,x"), "--widths 'x'"),
        (("backend", "--target", "toy:pair", "--widths", "1", "--prompts", "PROMPTS"), "widths"),
        ((*TOY, "--alpha", "3"), "alpha 3.0"),
        ((*TOY, "--html", "/nowhere/page.html", "--tokens", "5", "--prompts", "PROMPTS"), "cannot be written"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str, prompts: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run(*(str(prompts) if each == "PROMPTS" else each for each in arguments))


def test_an_empty_file_of_prompts(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("\n\n")
    with pytest.raises(UsageError, match="has no prompt"):
        run("engine", "--prompts", str(tmp_path / "none.txt"))
