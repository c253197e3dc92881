#!/usr/bin/env python3
"""Compares models/chat with jinja2, in the environment of Hugging Face's apply_chat_template.

usage: chat_templates.py CHAT_RENDER [FOLDER...] [--conversations N] [--programs N] [--seed N] [--verbose]

Renders every *.jinja of tests/oracle/chat_templates and of each FOLDER with N random conversations, and N random programs of
expressions, with both. Texts must be equal, byte for byte; where jinja2 fails, so must ours. Prints how many were compared;
exit 1 on any difference, 77 where jinja2 is missing.
"""
import argparse
import datetime
import glob
import json
import os
import random
import subprocess
import sys

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: python3-jinja2 is not installed")
    sys.exit(77)

NOW = datetime.datetime(2025, 3, 7, 9, 5, 3)  # as tests/unit/chat/chat_render.cpp has it
WORDS = ["hello", "", " ", "  padded\n", "Größe", "你好", "🎉 party", "a\nb", "<|im_end|>", "{{ x }}", "it's \"quoted\"", "x" * 40,
         "<think>\nhm\n</think>\n\nanswer", "</think>", "[INST]", "tab\there", "\\n", "é\u3000", "1", "null", "\r\nline"]


class Generation(jinja2.ext.Extension):
    """The block in which Hugging Face looks for what a model has said; its text is printed as it is."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, "jinja2.ext.loopcontrols"])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def render(self, template, case):
        self.process.stdin.write(json.dumps({"template": template, **case}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"chat_render died of {template!r} with {json.dumps(case)}")
        return json.loads(line)


class Judge:
    def __init__(self, program, verbose):
        self.ours = Ours(program)
        self.env = environment()
        self.parsed = {}
        self.verbose = verbose
        self.equal = self.both_fail = 0
        self.refused = {}
        self.different = []

    def expected(self, template, case):
        """("text", …), or ("error", …) when jinja2 does not render it."""
        try:
            if template not in self.parsed:
                self.parsed[template] = self.env.from_string(template)
            variables = {name: case.get(name) for name in ("messages", "tools", "documents")}
            variables["add_generation_prompt"] = case.get("add_generation_prompt", False)
            for name in ("bos_token", "eos_token"):
                if case.get(name) is not None:
                    variables[name] = case[name]
            variables.update(case.get("variables", {}))
            return "text", self.parsed[template].render(**variables)
        except Exception as error:  # any mistake of a template comes out as some exception of Python
            return "error", f"{type(error).__name__}: {error}"

    def compare(self, name, template, case):
        kind, want = self.expected(template, case)
        have = self.ours.render(template, case)
        if kind == "error" and "error" in have:
            self.both_fail += 1
        elif kind == "text" and have.get("text") == want:
            self.equal += 1
        elif kind == "text" and have.get("code") == "unsupported":
            # Said to be outside of the subset, by name: no difference, but counted.
            self.refused[have["error"].split(": ", 2)[-1]] = name
        else:
            self.different.append((name, template, case, kind, want, have))
            if self.verbose or len({other[0] for other in self.different}) <= 5 and name not in [d[0] for d in self.different[:-1]]:
                shown = template if len(template) < 6000 else "(long)"
                print(f"{name}: {shown!r}\n  with {json.dumps(case)[:1500]}\n  jinja2 {kind}: {want!r}\n  ours: {have!r}")


def random_text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 3)))


def random_json(rng, depth=2):
    kind = rng.randint(0, 8 if depth else 5)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.randint(-1000, 1000)
    if kind == 3:
        return rng.choice([0.5, -1.25, 1e20, 1e-7, 3.0, 0.1 + 0.2])
    if kind in (4, 5):
        return random_text(rng)
    if kind == 6:
        return [random_json(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(["a", "b", "name", "ключ", "x y"]): random_json(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def random_tool(rng):
    properties = {}
    for name in rng.sample(["city", "unit", "count", "when"], rng.randint(0, 3)):
        kind = rng.choice(["string", "integer", "array", ["string", "null"]])
        properties[name] = {"type": kind, "description": random_text(rng)}
        if kind == "array":
            properties[name]["items"] = {"type": "string"}
        if rng.random() < 0.2:
            properties[name]["enum"] = ["x", "y"]
    return {"type": "function", "function": {
        "name": rng.choice(["get_weather", "search", "add"]), "description": random_text(rng),
        "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}}


def random_content(rng):
    if rng.random() < 0.1:
        return [{"type": "text", "text": random_text(rng)} for _ in range(rng.randint(0, 2))]
    return random_text(rng)


def random_conversation(rng):
    if rng.random() < 0.4:  # what every template takes
        messages = [{"role": role, "content": random_text(rng)}
                    for role in ["user", "assistant"] * 2][:rng.choice([1, 3])]
        return {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "variables": {}}
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": random_content(rng)})
    for _ in range(rng.randint(0, 3)):
        messages.append({"role": "user", "content": random_content(rng)})
        answer = {"role": "assistant", "content": random_content(rng)}
        if rng.random() < 0.3:
            answer["tool_calls"] = [
                {"id": f"call{i:05}", "type": "function", "function": {"name": "get_weather", "arguments": rng.choice(
                    [{"city": random_text(rng), "count": 3}, random_json(rng), json.dumps({"city": "x"})])}}
                for i in range(rng.randint(1, 2))]
            if rng.random() < 0.5:
                answer["content"] = rng.choice([None, ""])
        if rng.random() < 0.2:
            answer["reasoning_content"] = random_text(rng)
        if rng.random() < 0.9:
            messages.append(answer)
        if "tool_calls" in answer:
            messages.append({"role": "tool", "name": "get_weather", "tool_call_id": "call00000",
                             "content": rng.choice([random_text(rng), random_json(rng)])})
    if rng.random() < 0.7:
        messages.append({"role": "user", "content": random_text(rng)})
    if rng.random() < 0.05:
        rng.shuffle(messages)
    case = {"messages": messages, "add_generation_prompt": rng.random() < 0.6, "variables": {}}
    if rng.random() < 0.4:
        case["tools"] = [random_tool(rng) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.9:
        case["bos_token"], case["eos_token"] = rng.choice([("<s>", "</s>"), ("<|begin_of_text|>", "<|eot_id|>")])
    for name in ("enable_thinking", "thinking", "keep_past_thinking"):
        if rng.random() < 0.3:
            case["variables"][name] = rng.random() < 0.5
    return case


class Programs:
    """Random programs: mostly of matching types, so that most of them have a value."""
    VALUES = {"s": "Hello, World", "u": "größe 你好🎉", "e": "", "n": 7, "z": 0, "f": 2.5, "t": True, "no": None,
              "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "d": {"k": 1, "a": "x", "items": [1]},
              "ms": [{"role": "user", "n": 1, "x": {"y": "q"}}, {"role": "tool", "n": 2}, {"role": "user", "n": 3, "x": None}]}

    def __init__(self, rng):
        self.rng = rng

    def pick(self, *choices):
        return self.rng.choice(choices)

    def any(self, depth):
        return self.pick(self.text, self.text, self.number, self.list, self.truth, self.odd)(depth)

    def odd(self, _):
        return self.pick("no", "missing", "a", "b", "v", "d.missing", "d", "d.k", "d['items']", "ms[5]", "ms[0].x", "none", "{}", "()", "(1,)",
                         "d.items()|list", "{'a': [1.0, none], 2: true}", "range(3)", "l is iterable", "s.missing", "1e16", "d.keys()")

    def text(self, depth):
        if depth <= 0:
            return self.pick("s", "u", "e", "'a b'", "' x\\ty '", "'é'", '"it\'s"', "'A,b,,c'")
        a, n = self.text(depth - 1), self.number(depth - 1)
        return self.pick(
            f"({a} + {self.text(depth - 1)})", f"({a} ~ {self.any(depth - 1)})", f"{a}|upper", f"{a}|lower", f"{a}|title",
            f"{a}|capitalize", f"{a}|trim", f"{a}|trim('ab ')", f"{a}|replace('o', {self.text(0)})", f"{a}|reverse", f"{a}|length|string",
            f"({a}).strip()", f"({a}).rstrip('d ')", f"({a}).title()", f"({a}).capitalize()", f"({a}).swapcase()", f"({a}).replace('l', 'L', 1)",
            f"({a})[{self.slice()}]", f"({a})[{self.rng.randint(-8, 8)}]", f"({a} * {self.rng.randint(-1, 3)})", f"{self.any(depth - 1)}|tojson",
            f"{self.any(depth - 1)}|tojson(indent={self.rng.randint(0, 3)})", f"{self.list(depth - 1)}|join({self.text(0)})",
            f"{self.any(depth - 1)}|string", f"({a} if {self.truth(depth - 1)} else {self.any(depth - 1)})", f"{a}|center({self.rng.randint(0, 20)})",
            f"({a}).center({self.rng.randint(0, 20)}, '*')", f"({a}).zfill({self.rng.randint(0, 20)})", f"{a}|indent(2, true)", f"{a}|default('dflt', true)",
            f"'%s|%5d|%-4s|%.2f' % ({self.any(depth - 1)}, {n}, {a}, {n})", f"'{{}}-{{}}'.format({a}, {self.any(depth - 1)})",
            f"({a}).ljust(9, '.')", f"{a}|truncate(8)", f"({a}).partition('o')[{self.rng.randint(0, 2)}]", f"({a}).removeprefix('H')",
            f"', '.join(({a}).split())", f"{self.any(depth - 1)}|tojson(sort_keys=true, ensure_ascii=true)", f"{a}|urlencode",
            f"({a}).split('o')[-1]", f"{a}|first", f"{a}|last", f"loopless|default({a})", f"{a}|wordcount|string")

    def slice(self):
        part = lambda: self.pick("", str(self.rng.randint(-6, 6)))
        return part() + ":" + part() + self.pick("", ":" + self.pick("", "-1", "2", "-2", "1"))

    def number(self, depth):
        if depth <= 0:
            return self.pick("n", "z", "f", "1", "2.0", "-3", "0.1", "12", "true", "1_000", "0x1f", "1e3")
        a, b = self.number(depth - 1), self.number(depth - 1)
        op = self.pick("+", "-", "*", "/", "//", "%", "+", "-")
        return self.pick(
            f"({a} {op} {b})", f"-{a}", f"({a})|abs", f"({a})|round({self.rng.randint(0, 3)})", f"({a})|round(1, 'ceil')", f"({a})|int", f"({a})|float",
            f"({self.pick('2', '3', 'n', 'f')} ** {self.rng.randint(-2, 4)})", f"{self.text(depth - 1)}|length", f"{self.list(depth - 1)}|length",
            f"({self.text(depth - 1)}).find('o')", f"({self.text(depth - 1)}).count('l')", f"'{self.pick('12', ' 7 ', 'x', '1.5', '-0', '1e2', '0x1f')}'|int",
            f"'{self.pick('12', ' 7.25 ', 'x', '1_0')}'|float", f"({self.numbers(depth - 1)})|sum", f"({self.numbers(depth - 1)})|max",
            f"({self.numbers(depth - 1)})|min", f"({self.numbers(depth - 1)})|first", f"({self.numbers(depth - 1)})|last")

    def numbers(self, depth):
        return self.pick("l", "[1, 2.5, n]", "range(1, 7, 2)", f"[{self.number(depth)}, {self.number(depth)}]", "l|sort", "l[::-1]", "(4, 5)")

    def list(self, depth):
        if depth <= 0:
            return self.pick("l", "w", "[]", "['x', 'y', 'x']", "[1, 'a', none, 2.0]", "ms", "range(4)|list", "d|list")
        a = self.list(depth - 1)
        return self.pick(
            f"({a} + {self.list(depth - 1)})", f"({a})[{self.slice()}]", f"{a}|reverse|list", "w|sort", "w|sort(case_sensitive=true, reverse=true)",
            "w|unique|list", f"({self.text(depth - 1)}).split()", f"({self.text(depth - 1)}).split('o', 1)", f"{self.text(depth - 1)}|list",
            f"({self.text(depth - 1)}).splitlines()", f"{a}|map('string')|list", f"{a}|select('string')|list", f"{a}|reject('none')|list",
            "ms|map(attribute='role')|list", "ms|map(attribute='x.y', default='?')|list", "ms|selectattr('n', 'gt', 1)|list",
            "ms|rejectattr('role', 'equalto', 'user')|list", "ms|selectattr('x', 'defined')|map(attribute='n')|list", "ms|sort(attribute='role,n')|list",
            f"{a}|batch(2)|list", f"{a}|batch(3, '-')|list", f"{a}|slice(2)|list", "d|dictsort", "d|items|list", "d.items()|list", "d.values()|list",
            f"[{self.any(depth - 1)}, {self.any(depth - 1)}]", f"({self.any(depth - 1)}, {self.any(depth - 1)})|list", f"({self.text(depth - 1)}).rsplit('l', 1)",
            f"({a} * 2)", f"({self.text(depth - 1)}).rsplit()", "ms|map(attribute='n')|select('odd')|list", f"w|map('upper')|map('lower')|list",
            "ms|selectattr('role', 'in', ['tool', 'x'])|list")

    def truth(self, depth):
        if depth <= 0:
            return self.pick("t", "true", "false", "missing", "e", "l", "z")
        x = self.any(depth - 1)
        test = self.pick("defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "boolean", "integer", "float",
                         "true", "false", "not none", "not defined", "callable", "upper", "lower", "sameas none", "in [1, 'x', none]", "eq 1")
        op = self.pick("==", "!=", "<", "<=", ">", ">=")
        return self.pick(
            f"({x} is {test})", f"({x} == {self.any(depth - 1)})", f"({self.number(depth - 1)} {op} {self.number(depth - 1)})",
            f"({self.text(depth - 1)} {op} {self.text(depth - 1)})", f"(not {x})", f"({self.truth(depth - 1)} and {x})", f"({self.truth(depth - 1)} or {x})",
            f"({self.text(0)} in {self.text(depth - 1)})", f"({x} in {self.list(depth - 1)})", f"({x} not in {self.list(depth - 1)})", "('k' in d)",
            f"({self.text(depth - 1)}).startswith('H')", f"({self.text(depth - 1)}).endswith(('d', ' '))", f"(1 < {self.number(depth - 1)} <= 10)",
            f"({self.text(depth - 1)}).isalpha()", f"({self.text(depth - 1)}).isupper()", f"({self.text(depth - 1)}).isspace()", f"({self.text(depth - 1)}).isalnum()",
            f"({self.number(depth - 1)} is even)", f"({self.number(depth - 1)} is divisibleby 3)", f"({self.list(0)} < {self.list(0)})")

    def space(self):
        return self.pick("", "", "", " ", "\n", "  \n", "\n  ", "x ", "y\n")

    def statement(self, depth):
        name = self.pick("a", "b", "v")  # not of VALUES: chat_template.h says why
        open_tag, close = self.pick("{%", "{%-", "{%+"), self.pick("%}", "-%}", "+%}")
        tag = lambda body: f"{self.space()}{self.pick(open_tag, '{%')} {body} {self.pick(close, '%}')}{self.space()}"
        body = lambda: self.body(depth - 1)
        kind = self.rng.randint(0, 11 if depth > 0 else 2)
        if kind <= 1:
            return f"{self.space()}{self.pick('{{', '{{-')} {self.any(2)} {self.pick('}}', '-}}')}{self.space()}"
        if kind == 2:
            return tag(f"set {name} = {self.any(2)}")
        if kind <= 4:
            return tag(f"if {self.truth(1)}") + body() + self.pick("", tag(f"elif {self.truth(1)}") + body()) + self.pick("", tag("else") + body()) + tag("endif")
        if kind <= 7:
            info = self.pick("{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}", "{{ loop.revindex0 }}", "{{ loop.previtem }}|{{ loop.nextitem }}",
                             "{{ loop.cycle('p', 'q') }}", "{{ loop.changed(i) }}", "")
            jump = self.pick("", "", tag(f"if {self.truth(1)}") + tag(self.pick("break", "continue")) + tag("endif"))
            return tag(f"for i in {self.list(1)}{self.pick('', ' if i')}") + info + "{{ i }}" + jump + body() + self.pick("", tag("else") + body()) + tag("endfor")
        if kind == 8:
            return tag("set ns = namespace(v=1)") + tag("for i in l") + tag("set ns.v = ns.v + i") + tag("endfor") + "{{ ns.v }}"
        if kind == 9:
            return tag("macro m(p, q='Q')") + "{{ p }}{{ q }}" + body() + tag("endmacro") + "{{ m(" + self.pick("", "1", "s, n", "q=2", "p=l") + ") }}"
        if kind == 10:
            return tag(f"set {name}") + body() + tag("endset") + "{{ " + name + " }}"
        return self.pick("{# comment #}", "{#- c -#}\n", "{% raw %} {{ x }} {% endraw %}\n", tag("filter upper") + body() + tag("endfilter"),
                         tag("with a = n") + body() + "{{ a }}" + tag("endwith"), tag("generation") + body() + tag("endgeneration"))

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.rng.randint(1, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--programs", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    judge = Judge(options.program, options.verbose)
    rng = random.Random(options.seed)
    folders = [os.path.splitext(os.path.abspath(__file__))[0], *options.folders]
    files = sorted(file for folder in folders for file in glob.glob(os.path.join(folder, "*.jinja")))
    if not files:
        sys.exit(f"no templates in {folders}")
    conversations = [random_conversation(rng) for _ in range(options.conversations)]
    idle = []
    for file in files:
        with open(file, encoding="utf-8", newline="") as source:
            template = source.read()
        before = judge.equal
        for case in conversations:
            judge.compare(os.path.basename(file), template, case)
        if judge.equal == before:
            idle.append(os.path.basename(file))
    print(f"templates: {len(files)}, renderings equal: {judge.equal}, refused by both: {judge.both_fail}")
    if idle:
        print(f"never rendered by either: {' '.join(idle)}")
    equal, both_fail = judge.equal, judge.both_fail
    programs = Programs(rng)
    for number in range(options.programs):
        judge.compare(f"program {number}", programs.body(2), {"messages": [], "variables": Programs.VALUES})
    print(f"programs: {options.programs}, equal: {judge.equal - equal}, refused by both: {judge.both_fail - both_fail}")
    for reason, name in sorted(judge.refused.items()):
        print(f"outside of the subset: {reason} ({name})")
    print(f"different: {len(judge.different)}")
    # A comparison in which next to nothing renders would show nothing.
    return 1 if judge.different or judge.equal < (judge.both_fail + judge.equal) / 3 else 0


if __name__ == "__main__":
    sys.exit(main())
