"""Docs that cannot drift: the reference is what the code prints, and every example runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from truebatch.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for index, match in enumerate(BLOCK.finditer(page.read_text())):
            if match[1] == kind:
                found.append((f"{page.relative_to(ROOT)}:{index}", match[2]))
    return found


def test_reference_is_what_the_code_prints() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "write_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[w for w, _ in blocks("python")])
def test_python_examples_run_and_print_what_they_say(
    where: str, code: str, tmp_path, monkeypatch, capsys
) -> None:
    """A comment `# -> text` after a print states its output."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, where, "exec"), {"__name__": "__main__"})
    said = re.findall(r"#\s*->\s*(.*)$", code, re.MULTILINE)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [s.strip() for s in said]


def commands() -> list[tuple[str, str, str]]:
    cases = []
    for where, text in blocks("console"):
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            while command.endswith("\\"):
                more, _, output = output.partition("\n")
                command = command[:-1] + more.strip()
            if command.startswith("truebatch "):
                cases.append((where, command, output))
    return cases


@pytest.mark.parametrize(("where", "command", "output"), commands())
def test_shell_examples_print_what_they_say(
    where: str, command: str, output: str, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command.split()[1:]) == 0
    squeeze = re.compile(r"\s+")
    assert squeeze.sub(" ", capsys.readouterr().out).strip() == squeeze.sub(" ", output).strip(), where


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", prose):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_notebooks_keep_no_outputs() -> None:
    for path in ROOT.glob("notebooks/*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs"), path.name
