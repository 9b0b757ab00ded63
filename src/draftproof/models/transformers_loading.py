"""Loads transformers models by name: a directory, a hub's name, a GGUF file; failures are one line and a remedy."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from draftproof.errors import ModelLoadError, UsageError, choice_error, whole
from draftproof.models.embedded import NAME as EMBEDDED
from draftproof.models.embedded import embedded_path
from draftproof.models.transformers import TransformersModel, need

DTYPES = ["auto", "float32", "bfloat16", "float16", "float64"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def load_transformers(
    source: str,
    *,
    dtype: str = "auto",
    device: str | None = None,
    attn_implementation: str | None = None,
    context_length: int | None = None,
    threads: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    name: str | None = None,
) -> TransformersModel:
    """Returns a causal language model of the transformers library.

    Args:
        source: a directory that `save_pretrained` wrote, a name on the Hugging Face hub, a GGUF file (its weights are
            expanded to `dtype`), or `smollm2-135m`.
        dtype: of the weights: "auto" (what the checkpoint has), "float32", "bfloat16", "float16", "float64".
        device: where it runs, such as "cpu", "cuda" or "cuda:1"; "auto" spreads it over what there is, which needs
            accelerate; None takes a GPU if there is one.
        attn_implementation: by transformers' names; None leaves it to transformers. With "sdpa" and "eager" the
            requests of a batch share a forward call, with any other they run one after the other.
        context_length: most tokens a sequence may hold; None takes what the model was trained for.
        threads: of torch, which are one setting for the whole process; None leaves it.
        revision: of a model on the hub.
        trust_remote_code: whether to run code that comes with the checkpoint.
        name: what to call it; None takes the directory's or file's name.

    Raises:
        ModelLoadError: if there is no such model, a file is missing or damaged, the tokenizer is another model's, the
            memory does not suffice, or a draft could not be taken back.
        MissingDependencyError: if transformers or torch is not installed.
        UsageError: if an option is out of range.
    """
    torch, transformers = need("torch"), need("transformers")
    if dtype not in DTYPES:
        raise choice_error("dtype", dtype, DTYPES)
    if threads is not None:
        if whole("threads", threads) < 1:
            raise UsageError(f"threads {threads} is not positive; leave it out for the default")
        torch.set_num_threads(threads)
    folder, file = _locate(source)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if file is not None:
        need("gguf")
        need("accelerate")
        options["gguf_file"] = file
    options = {key: value for key, value in options.items() if value}
    placed = _device(torch, device)
    weights: dict[str, Any] = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
    if file is not None and dtype == "auto":
        weights["dtype"] = torch.bfloat16
    if attn_implementation is not None:
        weights["attn_implementation"] = attn_implementation
    if placed is None:
        need("accelerate")
        weights["device_map"] = "auto"
    with _quiet(transformers), _explained(torch, source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
        module, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, **weights, **options
        )
        _check_complete(source, info)
        if placed is not None:
            module = module.to(placed)
        return TransformersModel(module, tokenizer, context_length=context_length, name=name or Path(source).name)


def is_hub_name(source: str) -> bool:
    """Returns whether a name could be one on the hub: `name` or `owner/name`."""
    return _HUB_NAME.fullmatch(source) is not None


def _locate(source: str) -> tuple[str, str | None]:
    """Returns what `from_pretrained` is to be given, and the GGUF file in it, if it is one."""
    if source == EMBEDDED:
        path = embedded_path()
        return str(path.parent), path.name
    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return str(path.parent), path.name
        raise ModelLoadError(f"{source} is a file; give the directory that holds config.json and the weights")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"{source} holds no config.json; give a directory that save_pretrained wrote")
        return str(path), None
    if not is_hub_name(source):
        raise ModelLoadError(f"{source} does not exist; give a directory, or a hub's name such as owner/name")
    return source, None


def _device(torch: Any, device: str | None) -> Any:
    """Returns the torch device, or None to have the model spread."""
    if device == "auto":
        return None
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        placed = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f'device {device!r} is unknown to torch; use "cpu", "cuda" or "cuda:1"') from error
    if placed.type == "cuda" and not torch.cuda.is_available():
        built = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        raise UsageError(f'device {device!r} cannot be used: {built}; use device="cpu"')
    if placed.type == "cuda" and placed.index is not None and placed.index >= torch.cuda.device_count():
        raise UsageError(f"device {device!r} does not exist; there are {torch.cuda.device_count()} GPUs")
    return placed


def _check_complete(source: str, info: Any) -> None:
    """Transformers fills absent weights with random numbers; such a model is refused."""
    absent = sorted(info["missing_keys"])
    other = sorted(key if isinstance(key, str) else str(key[0]) for key in info.get("mismatched_keys", ()))
    if absent or other:
        what = (
            f"lacks {len(absent)} of its weights ({absent[0]}, ...)" if absent else f"has another shape of {other[0]}"
        )
        raise ModelLoadError(f"the checkpoint {source} {what}; download it again, all its files")


@contextmanager
def _explained(torch: Any, source: str) -> Iterator[None]:
    """Turns what transformers raises into one line that says what to do."""
    try:
        yield
    except (ModelLoadError, UsageError):
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _no_memory(source) from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "not enough memory" in reason or "out of memory" in reason:
            raise _no_memory(source) from error
        if not Path(source).expanduser().exists() and source != EMBEDDED:
            raise ModelLoadError(
                f"{source} is no directory, and no model of that name could be had from the hub or its cache "
                f"({_short(reason)}); check the name and the network, or give a directory"
            ) from error
        raise ModelLoadError(
            f"transformers cannot load {source}: {_short(reason)}; download it again if a file is cut off or missing, "
            "or update transformers if the model is newer"
        ) from error


def _no_memory(source: str) -> ModelLoadError:
    return ModelLoadError(f'no memory for {source}; use a smaller dtype such as "bfloat16", or a smaller model')


def _short(reason: str, most: int = 160) -> str:
    sentence = re.split(r"(?<=[.!?])\s", reason, maxsplit=1)[0]
    return sentence if len(sentence) <= most else sentence[: most - 3] + "..."


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keeps transformers' progress bars, notices and warnings off the terminal while a model is loaded."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        # What reads GGUF files draws a progress bar of its own.
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
