"""Limits of chat templates: a template is a program of a stranger."""

from __future__ import annotations

import threading

import pytest

from sonoran.errors import ConfigError, ModelError
from sonoran.models.tokenizer import template
from sonoran.models.tokenizer.template import render

MESSAGES = [{"role": "user", "content": "hi\nyou"}]
WORK = "does more work than a chat can need"
WIDE = "pads texts to thousands of columns"
DEEP = "nested too deeply"


def growing(step: str, start: str = "'a'") -> str:
    """A value that doubles sixty times."""
    loop = f"{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={start}) %}}{loop}{{{{ ns.x == 1 }}}}"


BLOCKS = "".join(
    f"{{% block b{i} %}}{{% if deep %}}{{{{ self.b{i + 1}() }}}}{{{{ self.b{i + 1}() }}}}{{% endif %}}{{% endblock %}}"
    for i in range(40)
)
RUNAWAYS = {
    "loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", WORK),
    "blocks": (BLOCKS + "{% block b40 %}{% endblock %}", f"{WORK}|takes more than"),
    "product": ("{{ 'a' * 10**10 }}", WORK),
    "product that is not written": ("{% set x = 'a' * 10**10 %}", WORK),
    "list product": ("{{ ([1] * 1000000) * 1000000 }}", WORK),
    "power": ("{% set x = (10**9)**(10**9) %}", "thousands of digits"),
    "squares": (growing("ns.x * ns.x", "10"), "thousands of digits"),
    "sum": (growing("ns.x + ns.x"), WORK),
    "joined": (growing("ns.x ~ ns.x"), WORK),
    "lists in lists": (growing("[ns.x, ns.x]"), WORK),
    "tuples in tuples": (growing("(ns.x, ns.x)"), WORK),
    "mappings in mappings": (growing("{'a': ns.x, 'b': ns.x}"), WORK),
    "mappings by call": (growing("dict(a=ns.x, b=ns.x)"), WORK),
    "sums of lists": (growing("[ns.x] + [ns.x]"), WORK),
    "macro that doubles": ("{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}" + growing("f(ns.x)"), WORK),
    "long text in a loop": (
        "{% for i in range(99999) %}" + "x" * 2000 + "{% endfor %}",
        f"{WORK}|writes more than",
    ),
    "center": ("{{ 'a' | center(10**10) }}", WIDE),
    "str.center": ("{{ 'a'.center(10**10) }}", WIDE),
    "str.ljust": ("{{ 'a'.ljust(10**10) | length }}", WIDE),
    "str.zfill": ("{{ 'a'.zfill(10**10) }}", WIDE),
    "str.expandtabs": ("{{ '\t'.expandtabs(10**10) }}", WIDE),
    "str.translate": ("{{ 'aa'.translate({97: 'b'}) }}", "calls translate"),
    "int.to_bytes": ("{{ (1).to_bytes(10**10, 'little') }}", "calls to_bytes"),
    "format": ("{{ '%10000000000d' | format(1) }}", WIDE),
    "operator %": ("{{ '%10000000000d' % 1 }}", WIDE),
    "operator % with a computed width": ("{{ '%*d' % (10**10, 1) }}", WIDE),
    "str.format": ("{{ '{:10000000000}'.format(1) }}", WIDE),
    "str.format with a computed width": ("{{ '{:{}}'.format(1, 10**10) }}", "widths that are computed"),
    "strftime_now": ("{{ strftime_now('%99999999999d') }}", WIDE),
    "tojson": ("{{ messages | tojson(indent=10**9) }}", WIDE),
    "indent": ("{{ 'a\nb' | indent(10**9) }}", WIDE),
    "batch": ("{{ [1] | batch(10**9, 0) | list }}", WIDE),
    "slice": ("{{ [1] | slice(10**9) | list }}", WIDE),
    "sum of lists": ("{{ [[1], [2]] | sum(start=[]) }}", WORK),
    "join": ("{{ (['a' * 1000000] * 100000) | join }}", WORK),
    "str.join": ("{{ ''.join(['a' * 1000000] * 100000) }}", WORK),
    "replace": ("{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}", WORK),
    "replace by names": ("{{ ('a' * 1000000) | replace(old='a', new='b' * 1000000) }}", WORK),
    "slice by name": ("{{ [1] | slice(slices=10**9) | list }}", WIDE),
    "str.replace": ("{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}", WORK),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", DEEP),
    "nested conditions": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, DEEP),
    "nested loops": ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, DEEP),
    "nested parentheses": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", DEEP),
    "unknown filter": ("{{ 1 | nosuch }}", r"not valid \(line 1\): No filter named 'nosuch'"),
    "size": ("x" * (template.LONGEST_TEMPLATE + 1), "far too many"),
    "no text": (2, "is int, expected a text"),
}


@pytest.mark.parametrize("case", RUNAWAYS)
def test_a_template_that_runs_away_is_stopped(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(template, "WORK", 1 << 24)  # a sixteenth, to be quick
    source, match = RUNAWAYS[case]
    with pytest.raises(ModelError, match=match) as caught:
        render(source, {"messages": MESSAGES, "deep": True})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_time_is_limited_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "SECONDS", 0.05)
    monkeypatch.setattr(template, "WORK", 1 << 40)
    errors: list[Exception] = []

    def run() -> None:
        try:
            render(RUNAWAYS["loops"][0], {})
        except ModelError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "takes more than 0.05 s" in str(errors[0])


def test_long_chats_stay_far_from_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 messages of 1,000 characters, under a template with tools, need less than a tenth."""
    monkeypatch.setattr(template, "WORK", template.WORK // 10)
    tools = [{"name": f"f{i}", "parameters": {"a": {"type": "string"}}} for i in range(50)]
    source = (
        "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{% if m.role == 'user' %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>' ~ '\n' }}{% endif %}{% endfor %}"
    )
    chat = [{"role": "user", "content": "word " * 200}] * 2000
    assert len(render(source, {"messages": chat, "tools": tools})) > 2_000_000


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ [1, [2, 'x']] }}{{ (1, 'a') }}{{ {'k': [v]} }}", "[1, [2, 'x']](1, 'a'){'k': ['hi']}"),
        ("{{ 'a' ~ 1 ~ none ~ v }}", "a1Nonehi"),
        ("{{ '%05d|%s' % (42, v) }}{{ '%s' | format(v) }}{{ '{:>4}'.format(v) }}", "00042|hihi  hi"),
        ("{{ [v, 2] | join(', ') }}{{ messages | map(attribute='role') | join('-') }}", "hi, 2user"),
        ("{{ 'ab' | replace('b', 'c') }}{{ 'ab'.replace('a', '') }}{{ ''.join(['x', 'y']) }}", "acbxy"),
        (
            "{{ [1, 2, 3] | batch(linecount=2) | list }}{{ 'ab' | replace(old='a', new='x') }}",
            "[[1, 2], [3]]xb",
        ),
        ("{{ messages | join('+', attribute='role') }}{{ messages | sum('n', start=2) if 0 }}", "user"),
        ("{{ 'a\nb' | indent(2) }}{{ 'a' | center(3) }}|{{ [1, 2] | sum }}", "a\n  b a |3"),
        (
            "{% for a, b in [(1, 2)] %}{{ a + b }}{% endfor %}{{ [1, 2, 3] | batch(2) | list }}",
            "3[[1, 2], [3]]",
        ),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{% for i in [[1, [2]]] recursive %}{{ loop(i) if i is sequence else i }}{% endfor %}", "12"),
        ("{% set a, b = 1, v %}{{ b }}{% set x %}in{% endset %}{{ x }}", "hiin"),
    ],
)
def test_what_is_counted_keeps_its_value(source: str, expected: str) -> None:
    assert render(source, {"v": "hi", "messages": MESSAGES}) == expected


def test_a_refusal_is_one_printable_line() -> None:
    with pytest.raises(ConfigError, match=r"refuses the messages: two\\nlines \\x1b\[31m") as caught:
        render("{{ raise_exception('two\nlines \x1b[31m' + 'x' * 5000) }}", {})
    assert len(str(caught.value)) < 1000
