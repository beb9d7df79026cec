"""A table of implementations by name, imported on first use.

Each seam (model family, attention, quantisation, grammar, drafter, ...) has one `Registry`. The table is
visible in the seam's `__init__`; other packages add entries through the Python entry-point group
`radixlang.<seam>`. Must not import any implementation itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from radixlang.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Name → `"module:attribute"`, resolved lazily.

    `what` names the kind of thing in error messages, `group` the entry-point group for plug-ins. `extras`: names
    that need the package of that name, which an extra of that name brings.
    """

    def __init__(self, what: str, group: str, table: Mapping[str, str], extras: Collection[str] = ()) -> None:
        self.what = what
        self.group = group
        self.extras = frozenset(extras)
        self._table = dict(table)
        self._plugins_read = False

    def _read_plugins(self) -> None:
        if not self._plugins_read:
            self._plugins_read = True
            for point in entry_points(group=f"radixlang.{self.group}"):
                self._table.setdefault(point.name, point.value)

    def names(self) -> list[str]:
        """All known names, in the order of the table."""
        self._read_plugins()
        return list(self._table)

    def always(self) -> list[str]:
        """The names that need no extra."""
        return [name for name in self.names() if name not in self.extras]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        self._read_plugins()
        return name in self._table

    def get(self, name: str) -> T:
        """The implementation called `name`.

        Raises:
            ConfigError: unknown name (lists the known ones), or its module cannot be imported.
        """
        self._read_plugins()
        target = self._table.get(name)
        if target is None:
            raise ConfigError(f"Unknown {self.what} {name!r}; known are: {', '.join(self._table)}.")
        module, _, attribute = target.partition(":")
        try:
            value: Any = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise ConfigError(f"The {self.what} {name!r} cannot be loaded: {error}.") from error
        return value


def check_name(what: str, where: str, name: str, flag: str, also: Sequence[str] = ()) -> None:
    """Check that the registry or list of names at `where` ("module:ATTRIBUTE") or `also` knows `name`.

    Raises:
        ConfigError: unknown, or without the package that it needs; names the flag and lists the known names.
    """
    module, _, attribute = where.partition(":")
    registry: Collection[str] = getattr(importlib.import_module(module), attribute)
    if name not in registry and name not in also:
        raise ConfigError(f"{flag} {name!r} is no {what}; known are: {', '.join([*also, *registry])}.")
    if isinstance(registry, Registry) and name in registry.extras and find_spec(name) is None:
        raise ConfigError(f"{flag} {name} needs the package {name}: pip install 'radixlang[{name}]'.")
