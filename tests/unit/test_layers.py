"""The import contracts notice a planted import, in a copy of the tree."""

import shutil
import subprocess
import sys

import pytest

from tidegate.spec.paths import root

# the editable install's finder would answer with the checkout instead of the copy
LINT = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__ + type(f).__name__.lower()]
sys.path.insert(0, "src")
from importlinter.cli import lint_imports_command
lint_imports_command()
"""

PLANTED = {
    "protocol/planted.py": ("import tidegate.kernels.copy", "protocol stands alone BROKEN"),
    "kernels/planted.py": ("from tidegate.protocol import _runtime", "kernels stand alone BROKEN"),
    "engine/planted.py": (
        "def f():\n    from tidegate.spec import tlc",
        "only the command line of the engine imports spec BROKEN",
    ),
    "spec/planted.py": ("import tidegate.engine", "spec does not import the engine or the kernels BROKEN"),
    "engine/cli/planted.py": ("import tidegate.spec.tlc", None),
}


@pytest.fixture
def tree(tmp_path):
    for folder in ("spec", "protocol", "kernels", "engine"):
        shutil.copytree(root() / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(root() / "src", tmp_path / "src", symlinks=True)
    shutil.copy(root() / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree):
    return subprocess.run([sys.executable, "-c", LINT], cwd=tree, capture_output=True, text=True)


@pytest.mark.parametrize("place", PLANTED)
def test_a_planted_import_breaks_its_contract(place, tree):
    line, says = PLANTED[place]
    assert lint(tree).returncode == 0
    (tree / place).write_text(line + "\n")
    done = lint(tree)
    assert (done.returncode != 0) == (says is not None), done.stdout
    assert says is None or says in done.stdout
