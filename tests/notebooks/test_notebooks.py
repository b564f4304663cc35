import warnings
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(ROOT.glob("*.ipynb"))


def _read(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_no_outputs_and_defines_nothing(path):
    for cell in _read(path).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            lines = cell.source.splitlines()
            assert not [line for line in lines if line.lstrip().startswith(("def ", "class ", "lambda "))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(path, tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the Jupyter stack, not of ours
        from nbclient import NotebookClient

        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            monkeypatch.setenv(name, "1")
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
            monkeypatch.setenv(name, str(tmp_path / name.lower()))
        notebook = _read(path)
        client = NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    errors = [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    assert errors == []
    assert any("image/png" in out.get("data", {}) for out in outputs)
