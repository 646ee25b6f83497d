"""Measures the source: how large its classes, functions and modules are, and how well their walls hold.

Prints one table, "now" next to "wanted", and writes nothing. `make check` runs it; CONTRIBUTING.md says what the
figures are for. With `--strict` it fails when a figure that is binding is not met.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "ownpace"
MAX_PER_CLASS = 12
MAX_FUNCTION_LINES = 45
MAX_MODULE_LINES = 300

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file of the package, parsed once."""

    path: str  # relative to the package, as in `core/settings.py`
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text)

    @property
    def num_lines(self) -> int:
        """All lines, blank ones too."""
        return self.text.count("\n")

    @property
    def dotted(self) -> str:
        """The module's name inside the package: `core.settings`, or `core` for its `__init__.py`."""
        return self.path.removesuffix(".py").replace("/", ".").removesuffix("__init__").removesuffix(".")

    def classes(self) -> Iterator[ast.ClassDef]:
        """Classes at any depth."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[Function]:
        """Functions and methods at any depth."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    name: str
    now: str
    wanted: str
    met: bool
    binding: bool = False  # with --strict, not meeting it is an error
    details: Sequence[str] = ()  # printed below the row while it is not met


def read(source: Path) -> list[Module]:
    """All modules of the package in `source`."""
    return [
        Module(path.relative_to(source).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(source.rglob("*.py"))
    ]


def figures(source: Path) -> list[Figure]:
    """All figures of the package in `source`."""
    modules = read(source)
    return [
        large_classes(modules),
        levels_of_inheritance(modules),
        private_access(source, modules),
        any_per_line(modules),
        any_in_core(modules),
        longest_function(modules),
        long_modules(modules),
        comments(modules),
        names_used_twice(modules),
    ]


# Classes


def name_of(node: ast.expr) -> str:
    """The last part of the name in `node`: a base, a decorator, an annotation."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return name_of(inner)
    return ""


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether the class only declares what others define."""
    return any(name_of(base) == "Protocol" for base in node.bases)


def methods(node: ast.ClassDef) -> set[str]:
    """Names of its own methods and properties, without the constructor."""
    return {child.name for child in node.body if isinstance(child, Function)} - {"__init__"}


def attributes(node: ast.ClassDef) -> set[str]:
    """Names that its own methods assign to `self`, without the fields of a dataclass."""
    assigned = {
        target.attr
        for function in node.body
        if isinstance(function, Function)
        for target in ast.walk(function)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store) and name_of(target.value) == "self"
    }
    if any(name_of(decorator) == "dataclass" for decorator in node.decorator_list):
        assigned -= {name_of(child.target) for child in node.body if isinstance(child, ast.AnnAssign)}
    return assigned


def large_classes(modules: Sequence[Module]) -> Figure:
    """Classes that do too much."""
    sizes = [
        (len(methods(node)), len(attributes(node)), f"{node.name} ({module.path})")
        for module in modules
        for node in module.classes()
        if not is_protocol(node)
    ]
    large = sorted((size for size in sizes if max(size[:2]) > MAX_PER_CLASS), reverse=True)
    return Figure(
        f"classes with more than {MAX_PER_CLASS} methods or attributes",
        now=str(len(large)),
        wanted="≤ 3",
        met=len(large) <= 3,
        details=[
            f"{name}: {of_methods} methods, {of_attributes} attributes" for of_methods, of_attributes, name in large
        ],
    )


def imported_names(module: Module) -> dict[str, tuple[str, str]]:
    """What each name that the module imports from the package is: its module and its name there."""
    return {
        alias.asname or alias.name: (node.module.removeprefix("ownpace").removeprefix("."), alias.name)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ownpace"
        for alias in node.names
    }


def levels_of_inheritance(modules: Sequence[Module]) -> Figure:
    """The longest chain of our classes that ends in engines/, without protocols, abstract classes and exceptions."""
    parents: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for module in modules:
        known = imported_names(module)
        for node in module.classes():
            bases = [known.get(name, (module.dotted, name)) for name in map(name_of, node.bases)]
            if not any(name in {"Protocol", "ABC"} or name.endswith(("Error", "Exception")) for _, name in bases):
                parents[module.dotted, node.name] = bases

    def chain(key: tuple[str, str]) -> list[str]:
        above = [chain(parent) for parent in parents[key] if parent in parents]
        return [*max(above, key=len, default=[]), key[1]]

    ends = [key for key in parents if key[0].startswith("engines")]
    chains = sorted(map(chain, ends), key=len, reverse=True)
    longest = len(chains[0]) if chains else 0
    return Figure(
        "levels of inheritance in engines/",
        now=str(longest),
        wanted="≤ 2",
        met=longest <= 2,
        details=[" ← ".join(names) for names in chains if len(names) > 2],
    )


def names_used_twice(modules: Sequence[Module]) -> Figure:
    """Names that mean two classes."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in module.classes():
            places.setdefault(node.name, []).append(module.path)
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    return Figure(
        "class names used twice",
        now=str(len(twice)),
        wanted="0",
        met=not twice,
        binding=True,
        details=[f"{name}: {', '.join(paths)}" for name, paths in sorted(twice.items())],
    )


# Walls


def per_thousand(count: int, modules: Sequence[Module]) -> float:
    """`count` per 1,000 lines of the package."""
    return 1000 * count / max(1, sum(module.num_lines for module in modules))


def private_access(source: Path, modules: Sequence[Module]) -> Figure:
    """Uses of another object's private names, as ruff finds them."""
    # The ruff next to the running interpreter is the one that `make` installed; one on the PATH may be another.
    ruff = shutil.which("ruff", path=Path(sys.executable).parent) or "ruff"
    command = [ruff, "check", "--isolated", "--select", "SLF001", "--exit-zero", "--output-format", "json", str(source)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rate = per_thousand(len(found), modules)
    per_file = Counter(Path(entry["filename"]).relative_to(source.resolve()).as_posix() for entry in found)
    return Figure(
        "access to others' private names per 1,000 lines",
        now=f"{rate:.1f} ({len(found)})",
        wanted="≤ 1",
        met=rate <= 1,
        details=[f"{path}: {count}" for path, count in per_file.most_common(5)],
    )


def says_any(node: ast.AST) -> bool:
    """Whether `node` is a use of `Any`; an import is none."""
    match node:
        case ast.Name(id="Any") | ast.Attribute(attr="Any"):
            return True
        case ast.Call(func=function, args=[ast.Constant(value=str(written)), *_]) if name_of(function) == "cast":
            return re.search(r"\bAny\b", written) is not None  # cast("dict[str, Any]", …)
    return False


def uses_of_any(module: Module) -> list[int]:
    """The line of each use of `Any`."""
    return sorted(node.lineno for node in ast.walk(module.tree) if isinstance(node, ast.expr) and says_any(node))


def any_per_line(modules: Sequence[Module]) -> Figure:
    """`Any` in the whole package."""
    counts = Counter({module.path: len(uses_of_any(module)) for module in modules})
    rate = per_thousand(counts.total(), modules)
    return Figure(
        "`Any` per 1,000 lines",
        now=f"{rate:.1f} ({counts.total()})",
        wanted="≤ 4",
        met=rate <= 4,
        details=[f"{path}: {count}" for path, count in counts.most_common(5)],
    )


def any_in_core(modules: Sequence[Module]) -> Figure:
    """`Any` where the contract is."""
    lines = [f"{module.path}:{n}" for module in modules if module.path.startswith("core/") for n in uses_of_any(module)]
    return Figure("`Any` in core/", now=str(len(lines)), wanted="0", met=not lines, binding=True, details=lines)


# Lengths


def longest_function(modules: Sequence[Module]) -> Figure:
    """Lines from `def` to the end, docstring included."""
    lengths = sorted(
        (
            ((node.end_lineno or node.lineno) - node.lineno + 1, f"{node.name} ({module.path}:{node.lineno})")
            for module in modules
            for node in module.functions()
        ),
        reverse=True,
    )
    longest = lengths[0][0] if lengths else 0
    return Figure(
        "lines of the longest function",
        now=str(longest),
        wanted=f"≤ {MAX_FUNCTION_LINES}",
        met=longest <= MAX_FUNCTION_LINES,
        binding=True,
        details=[f"{name}: {length}" for length, name in lengths if length > MAX_FUNCTION_LINES],
    )


def long_modules(modules: Sequence[Module]) -> Figure:
    """Modules in which to look for a second idea."""
    long = sorted(((m.num_lines, m.path) for m in modules if m.num_lines > MAX_MODULE_LINES), reverse=True)
    return Figure(
        f"modules over {MAX_MODULE_LINES} lines",
        now=str(len(long)),
        wanted="≤ 3",
        met=len(long) <= 3,
        details=[f"{path}: {length}" for length, path in long],
    )


def comments(modules: Sequence[Module]) -> Figure:
    """Lines that are a comment, and lines that end in one; an instruction to a tool (`noqa`) is not a comment."""
    own_line = trailing = 0
    for module in modules:
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT and not re.fullmatch(r"# *(noqa|type:|pragma:)[^#]*", token.string):
                if token.line.lstrip().startswith("#"):
                    own_line += 1
                else:
                    trailing += 1
    share, more = (per_thousand(count, modules) / 10 for count in (own_line, trailing))
    return Figure(
        "comment lines, and trailing comments",
        now=f"{share:.1f} % + {more:.1f} %",
        wanted="2 to 4 %",
        met=2 <= share <= 4,
    )


# The table


def show(rows: Sequence[Figure]) -> None:
    """Print the figures, and what stands in the way of those not met."""
    width = max(len(row.name) for row in rows)
    print(f"{'figure':{width}}  {'now':>13}  wanted")
    for row in rows:
        print(f"{row.name:{width}}  {row.now:>13}  {row.wanted}{'' if row.met else '   ← not met'}")
        if not row.met:
            for line in row.details:
                print(f"    {line}")


def show_folders(modules: Sequence[Module]) -> None:
    """Print the lines of source per folder, as information."""
    lines: Counter[str] = Counter()
    for module in modules:
        lines[Path("ownpace", module.path).parent.as_posix()] += module.num_lines
    print(f"\nlines of source: {lines.total():,}")
    for folder, count in sorted(lines.items()):
        print(f"{count:7,}  {folder}")


def main() -> int:
    """Measure, print, and say whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", default=SOURCE, help="the package to measure: %(default)s")
    parser.add_argument("--strict", action="store_true", help="fail when a binding figure is not met")
    options = parser.parse_args()
    rows = figures(options.source)
    show(rows)
    show_folders(read(options.source))
    return int(options.strict and any(row.binding and not row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
