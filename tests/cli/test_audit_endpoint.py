"""`draftproof audit endpoint`: what it prints, its exit statuses, where keys come from, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import draftproof as dp
from draftproof.cli.audit import app
from draftproof.errors import UsageError
from tests.audit.endpoint.completions_server import Json, Rude, Served, serving

TARGET = dp.ToyModel.random(26, seed=3, order=2, spread=2.0)
ENGINE = dp.Engine(TARGET, dp.ModelDrafter(TARGET), num_draft_tokens=4)

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def server() -> Iterator[Served]:
    with serving(Served(ENGINE)) as served:
        yield served


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.txt"
    file.write_text("abc\nde\n")
    return str(file)


def run(*arguments: str, **environment: str) -> Result:
    result = CliRunner().invoke(app, ["endpoint", *arguments], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_an_exact_server(server: Served, prompts: str) -> None:
    result = run("--url", server.url, "--prompts", prompts, "--tokens", "400", "--drafter", "ngram")
    assert result.exit_code == 0, result.stdout
    assert "no evidence against" in result.stdout
    assert "against the laws it reports itself" in result.stdout
    assert "logit_bias" in result.stdout
    assert "kept" in result.stdout
    assert "would be found" in result.stdout


def test_a_broken_promise_exits_1_and_is_shown(server: Served, prompts: str, tmp_path: Path) -> None:
    def spoil(body: Json) -> Json:
        return body | {"top_k": 0}

    server.spoil = spoil
    html = tmp_path / "page.html"
    result = run("--url", server.url, "--prompts", prompts, "--tokens", "100", "--json", "--html", str(html))
    assert result.exit_code == 1
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["verdict"] == "not exact"
    assert found["level"] == "endpoint"
    assert {each["promise"]: each["outcome"] for each in found["numbers"]["checks"]}["top_k"] == "broken"
    assert "<td>top_k</td><td>broken</td>" in html.read_text()
    result = run("--url", server.url, "--prompts", prompts, "--tokens", "100", "--baseline-url", server.url)
    assert result.exit_code != 1
    assert "without speculation" in result.stdout


def test_nobody_there_exits_3(server: Served, prompts: str) -> None:
    nowhere = "http://127.0.0.1:1/v1"
    result = run("--url", nowhere, "--prompts", prompts, "--retries", "0")
    assert result.exit_code == 3
    assert "cannot be reached" in result.stdout


def test_what_a_server_writes_does_nothing_to_the_terminal(server: Served, prompts: str, tmp_path: Path) -> None:
    def behave(_: int) -> None:
        raise Rude(500, {"error": "\x1b[2J\u202eoops\x9b"})

    server.behave = behave
    html = tmp_path / "page.html"
    result = run("--url", server.url, "--prompts", prompts, "--retries", "0", "--html", str(html))
    assert result.exit_code == 3
    for shown in (result.stdout, html.read_text()):
        assert "\\u001b[2J" in shown
        assert not {"\x1b", "\u202e", "\x9b"} & set(shown)


def test_keys_come_from_the_environment(server: Served, prompts: str) -> None:
    server.key = "right"
    few = ("--url", server.url, "--prompts", prompts, "--tokens", "60", "--no-promises", "--temperature", "0")
    with pytest.raises(UsageError, match="refuses to answer without a key"):
        run(*few)
    assert run(*few, DRAFTPROOF_API_KEY="right").exit_code == 0
    with pytest.raises(UsageError, match="refuses the key"):
        run(*few, "--api-key", "wrong")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "localhost"), "no address of a server"),
        (("--url", "http://127.0.0.1:1/v1", "--tokens", "0"), "tokens 0"),
        (("--url", "http://127.0.0.1:1/v1", "--drafter", "x"), "drafter 'x'"),
        (("--url", "http://127.0.0.1:1/v1", "--temperature", "-1"), "temperature"),
        (("--url", "http://127.0.0.1:1/v1", "--html", "/nowhere/page.html"), "cannot be written"),
        (("--url", "http://127.0.0.1:1/v1", "--prompts", "/nowhere"), "cannot be read"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(*arguments)


def test_a_missing_url_is_wrong_usage() -> None:
    assert run().exit_code == 2
