"""The size and shape of the source tree in figures, so that two checkouts can be compared. Standard library alone.

    python benchmarks/house.py [ROOT ...] [--list]

ROOT is a checkout (default: this one); each gets a column. `--list` names what is counted, for the last ROOT.
To compare with an earlier commit: `git worktree add ../before 7aa84fc` and `python benchmarks/house.py ../before .`

Imports are read from the syntax tree, those inside functions included. A cycle is a set of modules that reach each
other; cycles at import time leave out imports inside functions and below `if TYPE_CHECKING`.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "endocil"


@dataclass(frozen=True)
class Module:
    """One file: its imports of other modules of the package, at import time and in all."""

    path: Path  # relative to the package
    lines: int
    tree: ast.Module
    imports: frozenset[str]
    imports_at_start: frozenset[str]


def package_of(root: Path) -> Path:
    for place in (root / "src" / PACKAGE, root / PACKAGE, root):
        if (place / "__init__.py").is_file():
            return place
    raise SystemExit(f"house: {root} has no package {PACKAGE}; give the root of a checkout")


def read_modules(root: Path) -> dict[str, Module]:
    """Every module of the package by its dotted name."""
    package = package_of(root)
    paths = sorted(path.relative_to(package) for path in package.rglob("*.py"))
    names = {_dotted(path): path for path in paths}
    modules = {}
    for name, path in names.items():
        text = (package / path).read_text("utf-8")
        tree = ast.parse(text)
        is_package = path.name == "__init__.py"
        everything = _targets(ast.walk(tree), name, is_package, names.keys())
        at_start = _targets(_at_start(tree.body), name, is_package, names.keys())
        modules[name] = Module(path, len(text.splitlines()), tree, everything, at_start)
    return modules


def _dotted(path: Path) -> str:
    parts = [PACKAGE, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _at_start(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The statements that run when a module is imported."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _at_start(node.orelse)
            continue
        yield node
        for inner in ("body", "orelse", "finalbody"):
            yield from _at_start(getattr(node, inner, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _at_start(handler.body)


def _targets(nodes: Iterable[ast.AST], name: str, is_package: bool, known: Iterable[str]) -> frozenset[str]:
    """The modules of the package that these statements import."""
    known, targets = set(known), set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join([*parents, *filter(None, [node.module])])
            inner = {f"{base}.{alias.name}" for alias in node.names}
            targets |= {one for one in inner if one in known} | ({base} if inner - known else set())
    return frozenset((targets & known) - {name})


def passes_on(tree: ast.Module) -> bool:
    """Nothing but imports (and a docstring, __all__, or a condition around imports)."""

    def is_import(node: ast.stmt) -> bool:
        if isinstance(node, ast.If | ast.Try):
            return all(map(is_import, [*node.body, *node.orelse]))
        return isinstance(node, ast.Import | ast.ImportFrom)

    def is_neutral(node: ast.stmt) -> bool:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        return docstring or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")

    statements = [node for node in tree.body if not is_neutral(node)]
    return bool(statements) and all(map(is_import, statements))


def cycles(imports: dict[str, frozenset[str]]) -> list[list[str]]:
    """Sets of modules that reach each other: strongly connected components of more than one (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(start: str) -> None:
        work = [(start, iter(sorted(imports[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(imports[target]))))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    position = stack.index(node)
                    component = stack[position:]
                    del stack[position:]
                    if len(component) > 1:
                        components.append(sorted(component))

    for name in imports:
        if name not in index:
            visit(name)
    return components


def type_hints(trees: Iterable[ast.Module]) -> tuple[int, int]:
    """How many arguments and results of functions are annotated, and how many there are; self and cls do not count."""
    annotated = total = 0
    for tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            given = node.args
            arguments = [*given.posonlyargs, *given.args]
            if arguments and arguments[0].arg in ("self", "cls"):
                arguments = arguments[1:]
            arguments += [*given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
            hints = [node.returns, *(argument.annotation for argument in arguments)]
            total += len(hints)
            annotated += sum(hint is not None for hint in hints)
    return annotated, total


def measure(root: Path) -> dict[str, tuple[str, list[str]]]:
    """Each figure, and the names that it counts."""
    modules = read_modules(root)
    files = [module.path for module in modules.values()]
    subpackages = {path.parts[0] for path in files if len(path.parts) > 1}
    top = [path.name for path in files if len(path.parts) == 1]
    names = Counter(path.name for path in files if path.name != "__init__.py")
    twice = sorted(name for name, n in names.items() if n > 1)
    importers = Counter(target for module in modules.values() for target in module.imports)
    single = sorted(name for name, n in importers.items() if n == 1)
    passing = sorted(str(module.path) for module in modules.values() if passes_on(module.tree))
    endings = sorted(str(path) for path in files if path.stem.endswith(("ing", "ed")))
    at_start = cycles({name: module.imports_at_start for name, module in modules.items()})
    lazy = cycles({name: module.imports for name, module in modules.items()})
    annotated, total = type_hints(module.tree for module in modules.values())
    long = sorted(f"{module.path} ({module.lines})" for module in modules.values() if module.lines > 400)

    def count(items: list[str]) -> tuple[str, list[str]]:
        return f"{len(items):,}", items

    return {
        "modules at the top level": count(sorted(top)),
        "subpackages": count(sorted(subpackages)),
        "files": (f"{len(files):,}", []),
        "lines": (f"{sum(module.lines for module in modules.values()):,}", []),
        "files of more than 400 lines": count(long),
        "file names that occur twice or more": count(twice),
        "files with one importer": count(single),
        "modules that only pass on": count(passing),
        "file names ending in -ing or -ed": count(endings),
        "import cycles at import time": count([" -> ".join(cycle) for cycle in at_start]),
        "import cycles, lazy imports included": count([" -> ".join(cycle) for cycle in lazy]),
        "type hints": (f"{annotated / max(1, total):.1%}", []),
    }


def table(columns: dict[str, dict[str, tuple[str, list[str]]]]) -> str:
    """Markdown: one row for each figure, one column for each checkout."""
    figures = next(iter(columns.values()))
    rows = [["figure", *columns], *([name, *(one[name][0] for one in columns.values())] for name in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description="The size and shape of the source tree in figures.")
    parser.add_argument("roots", nargs="*", type=Path, default=[Path(__file__).parents[1]], metavar="ROOT")
    parser.add_argument("--list", action="store_true", help="name what is counted, for the last ROOT")
    options = parser.parse_args()
    columns = {str(root): measure(root) for root in options.roots}
    print(table(columns))
    if options.list:
        for name, (_, items) in columns[str(options.roots[-1])].items():
            if items:
                print(f"\n{name}:", *items, sep="\n  ")


if __name__ == "__main__":
    main()
