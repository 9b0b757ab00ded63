"""The command line: `draftproof` and `python -m draftproof`."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Annotated

import typer

from draftproof.cli.audit import app as audit
from draftproof.cli.explain import explain
from draftproof.cli.generate import generate
from draftproof.errors import DraftproofError, ModelLoadError, UsageError
from draftproof.text import printable
from draftproof.version import __version__

app = typer.Typer(
    name="draftproof",
    help="Speculative decoding that is provably lossless.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(generate)
app.command()(explain)
app.add_typer(audit, name="audit")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line; exits 2 on wrong usage, 1 when something failed, 130 when interrupted."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - stays open for the process; messages must not go elsewhere
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character still shows the rest
    # Whoever is asked to end tells what was found until then, as when interrupted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except DraftproofError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError | ModelLoadError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
