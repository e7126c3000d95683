"""How much the tests state: `python tests/count_facts.py [FOLDER]` counts what is written in a folder of tests.

Parametrised tests count once here; `pytest --collect-only -q` counts each case.
"""

import ast
import sys
from collections import Counter
from pathlib import Path


def facts(tree: ast.AST) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found["test functions"] += 1
        if isinstance(node, ast.Assert):
            found["assert statements"] += 1
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.raises", "pytest.warns"):
            found["expected errors"] += 1
    return found


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    files = sorted(folder.rglob("*.py"))
    total = sum((facts(ast.parse(path.read_text("utf-8"))) for path in files), Counter[str]())
    print(f"{len(files)} files:", ", ".join(f"{n} {what}" for what, n in sorted(total.items())))


if __name__ == "__main__":
    main()
