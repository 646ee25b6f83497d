"""Write what the documentation takes from modules: rules, symbols, parameters, and what nodes can do.

A page says where, and of what, between two comments:

    <!-- from the module: rule -->
    …
    <!-- end -->

On the page of an algorithm, `rule`, `symbols` and `parameters` are those of its module. Elsewhere a name says what:

    core.contract.roles.Worker   a class: what it has and can do
    drop_in.joining.join         a function: what it takes
    core.contract.roles          a module: the indented blocks of its docstring
    core.blocks                  a package: its public names

`python scripts/pages.py` rewrites all pages; with `--check` it only names those that differ.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.algorithm import Algorithm

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ownpace"
REGION = re.compile(r"(<!-- from the module: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
TYPES = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "none"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def pages() -> dict[Path, str]:
    """Every page that takes something from a module, as it should be."""
    found = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        if REGION.search(text):
            found[path] = _written(path, text)
    return found


def _written(path: Path, text: str) -> str:
    return REGION.sub(lambda match: match[1] + _content(path, match[2]) + match[3], text)


def _content(path: Path, what: str) -> str:
    if what in OF_AN_ALGORITHM:
        if path.stem not in ALGORITHMS:
            raise SystemExit(f"{path} asks for the {what} of an algorithm, and {path.stem} is none")
        lines = OF_AN_ALGORITHM[what](ALGORITHMS[path.stem])
    elif (SOURCE / what.replace(".", "/")).is_dir():
        lines = _package(SOURCE / what.replace(".", "/"))
    elif (module := SOURCE / (what.replace(".", "/") + ".py")).is_file():
        lines = _blocks(ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "")
    else:
        lines = _definition(what)
    return "".join(line + "\n" for line in lines)


# ---- algorithms ----


def _rule(cls: type[Algorithm]) -> list[str]:
    """The indented blocks of the module's docstring."""
    return _blocks(_module_docstring(cls))


def _symbols(cls: type[Algorithm]) -> list[str]:
    """The tables of the module's docstring."""
    tables = re.findall(r"(?:^\|.*\n?)+", _module_docstring(cls), re.MULTILINE)
    return "\n\n".join(table.strip("\n") for table in tables).splitlines()


def _parameters(cls: type[Algorithm]) -> list[str]:
    """The fields of the dataclass, each with its docstring."""
    fields = dataclasses.fields(typing.cast("type[typing.Any]", cls))
    if not fields:
        return ["None."]
    types, meanings = typing.get_type_hints(cls), _field_docstrings(cls)
    rows = [(f"`{f.name}`", _default(f.default), _values(types[f.name]), meanings[f.name]) for f in fields]
    return _table(("name", "default", "values", "meaning"), rows)


OF_AN_ALGORITHM: dict[str, Callable[[type[Algorithm]], list[str]]] = {
    "rule": _rule,
    "symbols": _symbols,
    "parameters": _parameters,
}


def _blocks(docstring: str) -> list[str]:
    """The indented blocks of a docstring, as one."""
    block = [line for line in docstring.splitlines() if line.startswith("    ") or not line]
    # Besides the blocks, empty lines are left: those inside them, and those of the prose around them.
    inside = re.sub(r"\n{2,}", "\n\n", "\n".join(block)).strip("\n")
    return ["```", *textwrap.dedent(inside).splitlines(), "```"]


def _module_docstring(cls: type[Algorithm]) -> str:
    return inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")


def _field_docstrings(cls: type[Algorithm]) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("ownpace."):
            tree = _find(base.__name__, inspect.getsource(sys.modules[base.__module__]))
            found |= dict(_attributes(tree)) if isinstance(tree, ast.ClassDef) else {}
    return found


def _default(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _values(kind: typing.Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(kind))
    return " or ".join(TYPES[part] for part in typing.get_args(kind) or (kind,))


# ---- classes and packages ----


def _definition(name: str) -> list[str]:
    module, _, definition = name.rpartition(".")
    tree = _find(definition, (SOURCE / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
    return _class(tree) if isinstance(tree, ast.ClassDef) else _function(tree)


def _function(function: Function) -> list[str]:
    first, *rest = _paragraphs(function)
    signature = textwrap.wrap(_signature(function), 110, subsequent_indent="    ")
    return ["```", *signature, "```", first, "", *rest]


def _class(tree: ast.ClassDef) -> list[str]:
    meanings = dict(_attributes(tree))
    fields = [node for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    kinds = {ast.unparse(field.target): _kind(field.annotation) for field in fields}
    names = [name for name in [*kinds, *(m for m in meanings if m not in kinds)] if not name.startswith("_")]
    rows = [(f"`{name}`", kinds.get(name, ""), meanings.get(name, "")) for name in names]
    details: list[str] = []
    for function in tree.body:
        if isinstance(function, Function) and not function.name.startswith("_"):
            first, *rest = _paragraphs(function)
            rows.append((f"`{_signature(function)}`", _kind(function.returns), first))
            if rest:
                details += ["", *rest]
    return [*_table(("name", "type", "what it is"), rows), *details]


def _kind(annotation: ast.expr | None) -> str:
    text = "" if annotation is None else ast.unparse(annotation).removeprefix("ClassVar[").replace("'", "")
    text = text.removesuffix("]") if text.count("]") > text.count("[") else text
    return f"`{text}`" if text not in ("", "None") else ""


def _find(name: str, source: str) -> ast.ClassDef | Function:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return node
    raise SystemExit(f"there is no {name} where a page looks for it; was it renamed?")


def _attributes(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Fields of the class and what `__init__` sets, where a string literal follows that says what it is."""
    init = [part for node in tree.body if isinstance(node, Function) and node.name == "__init__" for part in node.body]
    for body in (tree.body, init):
        for node, after in itertools.pairwise(body):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                continue
            target = node.target if isinstance(node, ast.AnnAssign) else None
            name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", None)
            if isinstance(name, str) and isinstance(after.value.value, str):
                yield name, " ".join(after.value.value.split())


def _signature(function: Function) -> str:
    if any(isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in function.decorator_list):
        return function.name
    arguments = function.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    return f"{function.name}({ast.unparse(arguments)})"


def _paragraphs(function: Function) -> list[str]:
    """The docstring in lines of Markdown: its first paragraph, the others, and a list of its arguments."""
    text = ast.get_docstring(function) or ""
    prose, _, arguments = text.partition("\nArgs:\n")
    first, *others = [" ".join(paragraph.split()) for paragraph in prose.strip().split("\n\n")]
    lines = textwrap.wrap(f"`{function.name}`: {' '.join(others)}", 120) if others else []
    listed = re.findall(r"^    (\*{0,2}\w+): (.*?)(?=^    \*{0,2}\w+: |\Z)", arguments, re.DOTALL | re.MULTILINE)
    if listed:
        lines += [""] if lines else [f"`{function.name}` takes:", ""]
    for name, meaning in listed:
        item = f"- `{name}`: {' '.join(meaning.split())}"
        lines += textwrap.wrap(item, 120, subsequent_indent="  ")
    return [first, *lines]


def _package(folder: Path) -> list[str]:
    """The public names of each module of a package, each with the first line of its docstring."""
    rows = []
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                first = (ast.get_docstring(node) or "").split("\n\n")[0]
                link = f"[{path.name}](../{path.relative_to(ROOT).as_posix()})"
                rows.append((f"`{node.name}`", " ".join(_cell(first).split()), link))
    return _table(("name", "what it is", "file"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *lines]


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\|", text)


def main() -> None:
    """Write the pages, or say which differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs from its modules")
    options = parser.parse_args()
    different = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    for path in different:
        print(path.relative_to(ROOT))
        if not options.check:
            path.write_text(pages()[path], encoding="utf-8")
    if options.check and different:
        raise SystemExit("these pages differ from their modules; `python scripts/pages.py` writes them")


if __name__ == "__main__":
    main()
