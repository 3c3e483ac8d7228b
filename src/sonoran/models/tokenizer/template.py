"""Chat templates: programs of strangers, run in a sandbox with limits on their work, their time and their output."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from sonoran.errors import ConfigError, ModelError
from sonoran.models.untrusted import one_line

LONGEST_TEMPLATE = 1 << 20  # characters
LONGEST_OUTPUT = 1 << 25  # characters
WORK = 1 << 28  # characters that are written, in the output or on the way to it; other work counts as below
STEP = 500  # a turn of a loop, a call of a macro
NODE = 100  # a value inside a list or mapping that is written out
SECONDS = 10.0
WIDEST = 1000  # columns that a text may be padded or indented to


class _LimitError(Exception):
    """A limit was reached. No error of Jinja or Python's arithmetic, which templates can provoke and we explain."""


class _Budget:
    """What is left of a rendering's work. A limit that counts works in any thread, and is the same everywhere."""

    def __init__(self) -> None:
        self.left = WORK
        self.end = time.monotonic() + SECONDS

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise _LimitError("does more work than a chat can need")
        if time.monotonic() > self.end:
            raise _LimitError(f"takes more than {SECONDS:g} s")


_current: ContextVar[_Budget | None] = ContextVar("budget", default=None)


def _spend(work: int) -> None:
    budget = _current.get()
    if budget is not None:
        budget.spend(work)


@contextmanager
def _limited() -> Iterator[None]:
    token = _current.set(_Budget())
    try:
        yield
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            one_line(f"the model's chat template is not valid (line {error.lineno}): {error.message}")
        ) from error
    except _LimitError as error:
        raise ModelError(f"the model's chat template {error}") from None
    except (RecursionError, SyntaxError):  # Python's own limits on nesting
        raise ModelError("the model's chat template is nested too deeply") from None
    except MemoryError:
        raise ModelError("the model's chat template asks for more memory than there is") from None
    except Exception as error:
        text = str(error) or type(error).__name__
        raise ConfigError(one_line(f"the model's chat template refuses the messages: {text}")) from error
    finally:
        _current.reset(token)


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Run a template with the functions and whitespace rules that Hugging Face templates rely on.

    Raises ModelError when the template is not valid or reaches a limit, ConfigError when it refuses the
    variables.
    """
    if not isinstance(template, str):
        raise ModelError(f"the model's chat template is {type(template).__name__}, expected a text")
    if len(template) > LONGEST_TEMPLATE:
        raise ModelError(f"the model's chat template has {len(template)} characters, far too many")
    with _limited():
        parts, length = [], 0
        for part in _compile(template).generate(**variables):
            parts.append(part)
            length += len(part)
            if length > LONGEST_OUTPUT:
                raise _LimitError(f"writes more than {LONGEST_OUTPUT} characters")
        return "".join(parts)


class _GenerationTag(Extension):
    """``{% generation %}`` marks text for training; here it only yields its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> str:
        return str(caller())


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox that Hugging Face uses, and beyond it a price on whatever can grow without end."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated: Any
        for repeated in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
            written = sum(
                len(data.data) for child in repeated.body for data in child.find_all(nodes.TemplateData)
            )
            price = nodes.Const(STEP + written)
            step = nodes.Call(nodes.EnvironmentAttribute("spend"), [price], [], None, None)
            repeated.body.insert(0, nodes.ExprStmt(step).set_lineno(repeated.lineno))
        _price_values(tree)
        tree.set_environment(self)
        return tree

    spend = staticmethod(_spend)

    def priced(self, value: Any) -> Any:
        """A value made of others, which may be in it many times."""
        _spend(_written(value))
        return value

    def joined(self, *values: Any) -> str:
        """The operator ``~``."""
        _spend(sum(map(_written, values)))
        return "".join(map(str, values))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that make values longer."""
        if operator == "+" and _sized(left) and _sized(right):
            _spend(len(left) + len(right))
        elif operator == "*" and (_sized(left) or _sized(right)):
            sequence, count = (left, right) if _sized(left) else (right, left)
            _spend(len(sequence) * max(0, count) if isinstance(count, int) else 0)
        elif operator == "%" and isinstance(left, (str, bytes)):
            _check_widths(str(left))
            _spend(len(left) + _written(right))
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
            if bits > 10_000:
                raise _LimitError("computes with numbers of thousands of digits")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function or method from a template."""
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, (str, bytes, int)) and not isinstance(owner, bool):
            price = _PRICES.get(name)
            if name in ("translate", "maketrans", "to_bytes", "format_map"):
                raise _LimitError(f"calls {name}, which no chat needs")
            if name == "join" and args:
                args = (list(args[0]), *args[1:])
            if price is not None:
                _spend(price(owner, *args, **kwargs))
        result = super().call(__context, __obj, *args, **kwargs)
        return __self.priced(result) if __obj is dict else result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format``: the widths of its fields are limited, its result is paid for."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        template = str(value.__self__)

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_widths(template)
            if re.search(r"\{[^{}]*\{", template.replace("{{", "")):
                raise _LimitError("formats with widths that are computed")
            fields = template.count("{")
            _spend(len(template) + fields * (_written(args) + _written(kwargs)))
            return wrapped(*args, **kwargs)

        return checked


def _price_values(tree: nodes.Template) -> None:
    """Wrap lists, tuples and mappings that hold computed values, and ``~``, in calls that count their size."""

    def wrapped(node: Any) -> Any:
        if isinstance(node, nodes.Concat):
            return nodes.Call(
                nodes.EnvironmentAttribute("joined"), node.nodes, [], None, None, lineno=node.lineno
            )
        composed = isinstance(node, (nodes.List, nodes.Dict)) or (
            isinstance(node, nodes.Tuple) and node.ctx == "load"
        )
        if composed and node.find(nodes.Name) is not None:
            return nodes.Call(
                nodes.EnvironmentAttribute("priced"), [node], [], None, None, lineno=node.lineno
            )
        return node

    def visit(node: nodes.Node) -> None:
        for child in node.iter_child_nodes():
            visit(child)
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, field, [wrapped(item) for item in value])
            elif isinstance(value, nodes.Node):
                setattr(node, field, wrapped(value))

    visit(tree)


def _sized(value: Any) -> bool:
    return isinstance(value, (str, bytes, list, tuple))


def _written(value: Any) -> int:
    """Work of writing a value out, every occurrence of what is in it; stops when too much was counted."""
    if isinstance(value, str):
        return len(value) + 1
    budget = _current.get()
    limit = budget.left if budget is not None else WORK
    total, waiting = 0, [value]
    while waiting and total <= limit:
        item = waiting.pop()
        if isinstance(item, str):
            total += len(item) + NODE
        elif isinstance(item, Mapping):
            total += NODE
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            total += NODE
            waiting.extend(item)
        elif isinstance(item, Namespace):
            waiting.append(vars(item).get("_Namespace__attrs", {}))
        else:
            total += NODE
    return total


def _check_widths(pattern: str) -> None:
    """Refuse ``%9999999d`` and ``{:>9999999}``."""
    if re.search(r"[0-9]{4,}|%[-+ #0]*\*|\.\*", pattern):
        raise _LimitError("pads texts to thousands of columns")


def _columns(width: Any) -> int:
    if isinstance(width, int) and abs(width) > WIDEST:
        raise _LimitError("pads texts to thousands of columns")
    return abs(width) if isinstance(width, int) else len(width) if isinstance(width, str) else 0


def _padded(text: Any, width: Any = 80, *_: Any, **__: Any) -> int:
    return len(str(text)) + _columns(width)


def _tabs(text: Any, tabsize: Any = 8) -> Any:
    return len(text) + text.count("\t" if isinstance(text, str) else b"\t") * _columns(tabsize)


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    return len(str(text)) + (str(text).count("\n") + 1) * _columns(width)


def _replaced(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    grown: int = len(text) + (text.count(old) + 1) * len(new)
    return grown


def _joined(separator: Any, values: Any) -> int:
    return _written(values) + len(values) * len(separator)


def _join_filter(values: Any, d: Any = "", attribute: Any = None) -> int:
    return _written(values) + len(values) * len(str(d))


def _replace_filter(text: Any, old: Any, new: Any, count: Any = None) -> Any:
    return _replaced(str(text), str(old), str(new))


def _parts(values: Any, *args: Any, **kwargs: Any) -> int:
    for value in (*args[:1], *kwargs.values()):
        _columns(value)
    return 0


def _added(values: Any, attribute: Any = None, start: Any = 0) -> int:
    return 0 if isinstance(start, (int, float)) else WORK + 1


def _formatted(text: Any, *args: Any, **kwargs: Any) -> int:
    _check_widths(str(text))
    return len(str(text)) + _written(args) + _written(kwargs)


# Characters that a method of a text writes, before it does; what is not here writes no more than it reads.
_PRICES: dict[str, Callable[..., Any]] = {
    "center": _padded,
    "ljust": _padded,
    "rjust": _padded,
    "zfill": _padded,
    "expandtabs": _tabs,
    "replace": _replaced,
    "join": _joined,
}
# The same for filters.
_FILTER_PRICES: dict[str, Callable[..., Any]] = {
    "batch": _parts,
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "join": _join_filter,
    "replace": _replace_filter,
    "slice": _parts,
    "string": lambda value: _written(value),
    "sum": _added,
}
_NEEDLESS = ("pprint", "random", "urlize", "wordwrap", "xmlattr")


def _priced_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    price = _FILTER_PRICES.get(name)
    skip = int(hasattr(function, "jinja_pass_arg"))  # Jinja gives it its own context before the value

    @wraps(function)
    def priced(*args: Any, **kwargs: Any) -> Any:
        if name == "join" and not isinstance(args[skip], (list, tuple)):
            args = (*args[:skip], list(args[skip]), *args[skip + 1 :])
        if price is not None:
            _spend(price(*args[skip:], **kwargs))
        result = function(*args, **kwargs)
        if isinstance(result, (str, list, tuple)):
            _spend(len(result))
        return result

    return priced


@jinja2.pass_context  # so that nothing is computed when the template is compiled, where no budget is
def _finalize(context: Context, value: Any) -> Any:
    _spend(_written(value))
    return value


@lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _GenerationTag],
        finalize=_finalize,
        optimized=False,
    )
    environment.filters["tojson"] = _to_json
    for name in _NEEDLESS:
        del environment.filters[name]
    for name, function in environment.filters.items():
        environment.filters[name] = _priced_filter(name, function)
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    _check_widths(pattern)
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which would change what the model reads.
    written = _written(value)
    _spend(written)
    text = json.dumps(value, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
    if indent is None:
        return text
    # Every value on a line of its own, indented by its depth.
    _spend((text.count(",") + text.count("[") + text.count("{") + 1) * 2 * _columns(indent) * _depth(value))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _depth(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, (list, tuple)) else 0
