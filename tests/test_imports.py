"""What `import truebatch` costs, and that the rooms hold."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_import_is_light() -> None:
    code = (
        "import sys, truebatch, truebatch.cli; "
        "heavy = {'jax', 'apache_beam', 'matplotlib', 'torch', 'tensorflow', 'dp_accounting', 'pandas'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"import truebatch loads {done.stderr}"


def test_a_missing_extra_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['dp_accounting'] = None\n"
        "from truebatch.errors import MissingExtra\n"
        "try:\n    import truebatch.accounting.events\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'truebatch[events]'" in done.stdout


def test_no_text_file_names_a_machine_or_a_registry() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in listed:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".cff", ".yml", ".ipynb"} and path.exists():
            text = path.read_text()
            for word in ("/wor" + "k/", "/ro" + "ot/", "--index" + "-url", "pypi.org/simple" + "/"):
                assert word not in text, f"{name} holds {word!r}"
