"""The source that a command line names."""

from collections.abc import Sequence

from truebatch.data import Source, open_source


def source_of(where: Sequence[str], *, format: str | None, on_bad_row: str) -> Source:  # noqa: A002
    """One path, glob or directory, or several."""
    options = {"on_bad_row": on_bad_row} if on_bad_row != "error" else {}
    return open_source(where[0] if len(where) == 1 else list(where), format, **options)  # type: ignore[arg-type]
