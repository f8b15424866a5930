"""Which module of the product imports which; imports in functions and for type checkers count."""

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"


def modules():
    """Return name → path of every module in src."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_graph():
    """Return name → names of the modules that it imports itself."""
    known = modules()
    return {name: _imported(name, path, known) for name, path in known.items()}


def _imported(name, path, known):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {one if one in known else node.module for one in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & set(known)) - {name}


def rings(graph):
    """Return the sets of modules that import each other, directly or through others (Tarjan)."""
    order, low, stack, found = {}, {}, [], []

    def visit(name):
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            at = stack.index(name)
            ring = set(stack[at:])
            del stack[at:]
            if len(ring) > 1:
                found.append(ring)

    for name in graph:
        if name not in order:
            visit(name)
    return found
