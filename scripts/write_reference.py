"""Write docs/reference from the code; `--check` says whether that would change anything."""

import argparse
import os
import sys
from pathlib import Path

os.environ["COLUMNS"] = "100"  # before argparse formats anything

from truebatch.cli.main import build_parser

TARGET = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"


def reference() -> str:
    """The help text of every command, as one page."""
    parser = build_parser()
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    pages = [("truebatch", parser), *((f"truebatch {name}", p) for name, p in actions[0].choices.items())]
    parts = ["# Commands\n\nWritten by `make docs` from the code.\n"]
    parts += [f"## {title}\n\n```text\n{p.format_help().rstrip()}\n```\n" for title, p in pages]
    return "\n".join(parts)


def main() -> int:
    """Write the page, or check it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when the page is stale"
    )
    text = reference()
    if arguments.parse_args().check:
        stale = not TARGET.exists() or TARGET.read_text() != text
        print(f"{TARGET.name} is stale: run 'make docs'" if stale else "up to date", file=sys.stderr)
        return int(stale)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
