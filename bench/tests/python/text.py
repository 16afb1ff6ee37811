"""A large real text: the lines of this repository's sources and pages, over and over.

A line is `name of its file, TAB, number in the whole text, TAB, what it says`. The files take turns line by line, so
that the records of one key (the file's name) lie among those of all the others.
"""

import itertools
import os

from processes import ROOT

_KINDS = (".rs", ".md", ".toml", ".py", ".fbs", ".lock")
_SKIPPED = {"target", "felix-data"}


def _files():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(names):
            if name.endswith(_KINDS):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, ROOT).encode(), path


def write_text(path, count):
    """Writes `count` lines to `path`; the numbers of each key's lines, in order."""
    sources = []
    for name, source in _files():
        with open(source, "rb") as file:
            lines = file.read().split(b"\n")
        sources.append((name, itertools.cycle(lines)))
    keys = {name: [] for name, _ in sources}
    with open(path, "wb") as out:
        for number, (name, lines) in zip(range(count), itertools.cycle(sources)):
            out.write(b"%s\t%d\t%s\n" % (name, number, next(lines)))
            keys[name].append(number)
    return {name: numbers for name, numbers in keys.items() if numbers}


def numbers_by_key(records):
    """The numbers of each key's lines in the order in which `records` has them."""
    keys = {}
    for record in records:
        name, number, _ = record.split(b"\t", 2)
        keys.setdefault(name, []).append(int(number))
    return keys
