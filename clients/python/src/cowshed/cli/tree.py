# SPDX-License-Identifier: Apache-2.0
"""The lineage of datasets: which snapshot is whose, which clone came from which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.tree import Tree

from cowshed.cli.output import Json, human_bytes
from cowshed.client import Client
from cowshed.types import Dataset, Snapshot


@dataclass
class Node:
    """A dataset or snapshot and what hangs on it."""

    item: Dataset | Snapshot
    children: list[Node] = field(default_factory=list)


def lineage(client: Client, prefix: str) -> list[Node]:
    """The trees of a subtree of names, roots by name.

    A clone hangs on its origin; one of a head, whose origin is a hidden snapshot, on that dataset.
    One whose origin lies outside the subtree is a root.
    """
    datasets = {d.name: Node(d) for d in client.list(prefix, page_size=1000)}
    by_uid: dict[str, Node] = {}
    for one in client.list_snapshots(prefix=prefix, page_size=1000):
        node = Node(one)
        by_uid[one.uid] = node
        parent = datasets.get(one.dataset)
        if parent is not None:
            parent.children.append(node)
    roots: list[Node] = []
    for node in datasets.values():
        assert isinstance(node.item, Dataset)
        origin = by_uid.get(node.item.origin_uid) or datasets.get(node.item.parent)
        (roots if origin is None else origin.children).append(node)
    return roots


def note(item: Dataset | Snapshot) -> str:
    """What to say about an item beside its name."""
    if isinstance(item, Snapshot):
        return f"{human_bytes(item.unique_bytes)} unique"
    text = f"{human_bytes(item.used_bytes)} used"
    if item.origin:
        return f"{text}, clone of {item.origin}"
    return f"{text}, clone of a head" if item.is_clone else text


def draw(roots: list[Node]) -> list[Tree]:
    """The trees as pictures."""

    def grow(tree: Tree, node: Node) -> None:
        item = node.item
        hangs = isinstance(item, Dataset)
        label = item.name if hangs else f"@{item.name.partition('@')[2]}"
        # A clone that hangs on its origin needs no word about it.
        text = note(item).partition(",")[0] if tree is not root else note(item)
        branch = tree.add(f"{label}  ({text})")
        for child in node.children:
            grow(branch, child)

    pictures = []
    for node in roots:
        root = Tree("", hide_root=True)
        grow(root, node)
        pictures.append(root)
    return pictures


def walk(roots: list[Node], parent: str = "") -> Iterator[tuple[str, str, Dataset | Snapshot]]:
    """Yields (name, parent's name, item), parents first."""
    for node in roots:
        yield node.item.name, parent, node.item
        yield from walk(node.children, node.item.name)


def nested(roots: list[Node]) -> Json:
    """The trees as JSON."""
    return [
        {
            "name": node.item.name,
            "kind": "dataset" if isinstance(node.item, Dataset) else "snapshot",
            "uid": node.item.uid,
            "children": nested(node.children),
        }
        for node in roots
    ]
