#!/usr/bin/env python3
"""Texts that grammars of JSON schemas take, judged by python3-jsonschema.

    json_schemas.py GRAMMAR_SAMPLE [--samples N] [--seed S]

GRAMMAR_SAMPLE is the program of tests/unit/grammar. Schemas are those below and random ones; every sample has to be
JSON that the validator accepts. Exits with 77 without jsonschema.
"""

import argparse
import datetime
import ipaddress
import json
import random
import re
import subprocess
import sys
import urllib.parse

try:
    import jsonschema
except ImportError:
    print("python3-jsonschema is not installed")
    sys.exit(77)

SCHEMAS = [
    {}, True, {"type": "object"}, {"type": "array"}, {"type": ["string", "null", "boolean"]}, {"type": "number"}, {"type": "integer"},
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
     "required": ["name", "age"]},
    {"type": "object", "properties": {"a": {"type": "null"}, "ab": {"type": "integer"}, "b": {"const": "x"}},
     "additionalProperties": {"type": "string"}},
    {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["c", "d"], "additionalProperties": True},
    {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "exclusiveMinimum": -12, "maximum": 1203}, "minItems": 2, "maxItems": 5},
    {"prefixItems": [{"type": "string"}, {"type": "number", "minimum": -1, "maximum": 1}], "items": {"enum": [1, "a", None]},
     "minItems": 1},
    {"prefixItems": [{"type": "string"}, {}], "items": False},
    {"enum": ["a\"b\\c\n", 1, 1.5, -2e300, None, True, {"k": ["v"]}, "水"]}, {"const": {"a": [1, 2, {"b": None}]}},
    {"type": "string", "minLength": 3, "maxLength": 5}, {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,4}$"}, {"type": "string", "pattern": "ab+c"},
    {"type": "string", "pattern": "^(?:red|green|[^a-z\"\\\\]{2})$|^x"}, {"pattern": "^\\S+@\\S+\\.[a-z]{2,3}$"},
    {"format": "date"}, {"format": "date-time"}, {"format": "time"}, {"format": "uuid"},
    {"format": "email"}, {"format": "hostname"}, {"format": "ipv4"}, {"format": "ipv6"}, {"format": "uri", "minLength": 1, "maxLength": 2083},
    {"format": "duration"}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"type": "number", "minimum": -0.75, "maximum": 12.5},
    {"type": "number", "exclusiveMaximum": -0.001}, {"type": "number", "exclusiveMinimum": 999999.5},
    {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "string", "maxLength": 2}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
               {"type": "object", "properties": {"kind": {"enum": ["square", "box"]}, "side": {"type": "integer"}},
                "required": ["kind", "side"]},
               {"type": "null"}]},
    {"allOf": [{"properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
               {"properties": {"b": {"type": "string"}, "a": {"maximum": 9}}, "required": ["b"]}]},
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
        "value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"]}}},
    {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}},
    {"type": "integer", "minimum": -1050, "maximum": 99}, {"type": "integer", "minimum": 7}, {"type": "integer", "maximum": -3},
    {"type": "number", "minimum": -12, "maximum": -3}, {"type": "number", "minimum": 5}, {"type": "number", "maximum": 0},
    {"type": "integer", "multipleOf": 7}, {"type": "integer", "multipleOf": 250, "minimum": -1000, "maximum": 123456},
    {"type": "number", "multipleOf": 12, "minimum": 5.5}, {"allOf": [{"type": "integer", "multipleOf": 4}, {"multipleOf": 6, "minimum": 1}]},
    {"type": "object", "minProperties": 1, "maxProperties": 3, "additionalProperties": {"type": "integer"}},
    {"properties": {"a": {}, "b": {"type": "null"}, "c": {}}, "minProperties": 2, "maxProperties": 2},
    {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": {"type": "integer"}, "minProperties": 3},
    {"patternProperties": {"^[a-z]{2}$": {"type": "integer"}}, "additionalProperties": False, "minProperties": 1},
    {"properties": {"id": {"type": "integer"}}, "required": ["id"], "patternProperties": {"^x-": {"type": "string"}, "^n_[0-9]+": {"type": "null"}}},
    {"patternProperties": {"a|b": {"type": "boolean"}}, "additionalProperties": {"type": "string"}},
    {"propertyNames": {"enum": ["en", "de"]}, "additionalProperties": {"type": "string"}, "minProperties": 1},
    {"type": "object", "propertyNames": {"pattern": "^[A-Z]+$"}, "additionalProperties": {"type": "null"}},
    {"allOf": [{"enum": ["a", "b", {"c": 1}]}, {"enum": ["b", {"c": 1}]}]}, {"const": "c", "enum": ["a", "c"]},
    {"allOf": [{"type": "array", "items": {"type": "integer"}}, {"items": {"minimum": 3, "maximum": 9}, "maxItems": 3}]},
    {"$ref": "#/definitions/p", "minimum": 3, "definitions": {"p": {"type": "integer", "maximum": 30}}},
]


def random_schema(rng, depth):
    kinds = ["integer", "number", "string", "null", "boolean", "enum", "pattern"]
    kinds += ["object", "array", "any", "all"] * 2 if depth > 0 else []
    kind = rng.choice(kinds)
    name = lambda: "".join(rng.choice("abé\"\\ c") for _ in range(rng.randint(0, 3)))
    if kind == "integer":
        low = rng.randint(-2000, 2000)
        high = low + rng.choice([0, 1, 9, 100, 12345])
        schema = {"type": "integer"}
        if rng.random() < 0.7:
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = low - 1
        if rng.random() < 0.7:
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = high + 1
        if rng.random() < 0.3:
            schema["multipleOf"] = rng.choice([2, 3, 5, 10, 16, 60, 99, 100, 750])
        return schema
    if kind == "number":
        low = rng.choice([rng.randint(-50, 50), rng.randint(-5000000, 5000000) / 10 ** rng.randint(1, 6)])
        edges = {rng.choice(["minimum", "exclusiveMinimum"]): low, rng.choice(["maximum", "exclusiveMaximum"]): low + rng.randint(1, 99) / 10}
        if all(abs(edge) < 1e6 and float(f"{edge:.6f}") == edge for edge in edges.values()) and rng.random() < 0.5:
            return {"type": "number", **edges}
        low = round(low)
        return rng.choice([{"type": "number"}, {"type": "number", "minimum": low}, {"type": "number", "maximum": low},
                           {"type": "number", "minimum": low, "maximum": low + rng.randint(0, 30)}])
    if kind == "string":
        low = rng.randint(0, 4)
        return rng.choice([{"type": "string"}, {"type": "string", "minLength": low},
                           {"type": "string", "minLength": low, "maxLength": low + 3}])
    if kind == "pattern":
        atom = lambda: rng.choice(["a", "[b-d]", "\\d", "[^\"x]", "(?:ab|c)", ".", "\\\\", "\\w", "é", "\\."])
        body = "".join(atom() + rng.choice(["", "", "*", "+", "?", "{2}", "{1,3}", "+?"]) for _ in range(rng.randint(1, 4)))
        return {"type": "string", "pattern": rng.choice(["^", ""]) + body + rng.choice(["$", ""])}
    if kind == "enum":
        return {"enum": [rng.choice([rng.randint(-9, 9), name(), None, True, [name()], {name(): 1}]) for _ in range(rng.randint(1, 4))]}
    if kind == "object":
        names = {name() for _ in range(rng.randint(0, 4))}
        schema = {"type": "object", "properties": {n: random_schema(rng, depth - 1) for n in names}}
        schema["required"] = [n for n in names if rng.random() < 0.5]
        if rng.random() < 0.6:
            schema["additionalProperties"] = rng.choice([True, False, random_schema(rng, 0)])
        if rng.random() < 0.3:
            schema["minProperties"] = rng.randint(0, len(names))
        if rng.random() < 0.3:
            schema["maxProperties"] = max(schema.get("minProperties", 0), len(schema["required"])) + rng.randint(0, 2)
        if rng.random() < 0.3:
            schema["patternProperties"] = {"^x" + rng.choice(["", "-", "[0-9]+$"]): random_schema(rng, 0)}
        return schema
    if kind == "array":
        schema = {"type": "array", "items": random_schema(rng, depth - 1)}
        if rng.random() < 0.5:
            schema["prefixItems"] = [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            schema["minItems"] = rng.randint(0, 4)
            schema["maxItems"] = schema["minItems"] + rng.randint(0, 3)
        return schema
    if kind == "any":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "all":
        first, second = ({"properties": {n: {"type": "integer"} for n in (name(), name())}, "type": "object"} for _ in range(2))
        first["required"] = sorted(first["properties"])[:1]
        return {"allOf": [first, second]}
    return {"type": kind}


def is_rfc3339(text, kind):
    """date, time and date-time as RFC 3339 has them, by datetime."""
    if kind != "date" and not re.search(r"(Z|[-+]\d\d:\d\d)$", text):
        return False
    try:
        if kind == "date":
            return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text)) and bool(datetime.date.fromisoformat(text))
        text = re.sub(r"\.(\d+)", lambda m: "." + m.group(1).ljust(6, "0"), text.replace("Z", "+00:00"))
        return bool(datetime.datetime.fromisoformat(text if kind == "date-time" else "2000-01-01T" + text))
    except ValueError:
        return False


def check(schema, text):
    """None, or what is wrong."""
    try:
        value = json.loads(text, parse_constant=lambda c: 1 / 0)
    except (ValueError, ZeroDivisionError) as error:
        return f"no JSON: {error}"
    text.encode()  # lone surrogates are no text
    if isinstance(schema, dict) and schema.get("format") in ("date", "time", "date-time") and not is_rfc3339(value, schema["format"]):
        return "no " + schema["format"]
    is_uuid = isinstance(schema, dict) and schema.get("format") == "uuid"
    if is_uuid and not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", value):
        return "no uuid"
    kind = schema.get("format") if isinstance(schema, dict) else None
    try:
        if kind in ("ipv4", "ipv6"):
            (ipaddress.IPv4Address if kind == "ipv4" else ipaddress.IPv6Address)(value)
        if kind == "uri" and not urllib.parse.urlsplit(value).hostname:
            return "no uri"
    except ValueError as error:
        return str(error)
    if kind == "email" and not re.fullmatch(r"[\w+-]+(\.[\w+-]+)*@([A-Za-z0-9](-*[A-Za-z0-9])*)(\.[A-Za-z0-9](-*[A-Za-z0-9])*)+", value):
        return "no email"
    if kind == "hostname" and not re.fullmatch(r"(?=.{1,253}$)[A-Za-z0-9](-*[A-Za-z0-9])*(\.[A-Za-z0-9](-*[A-Za-z0-9])*)*", value):
        return "no hostname"
    if kind == "duration" and (value[-1] in "PT" or not re.fullmatch(
            r"P(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(\d+H)?(\d+M)?(\d+S)?)?)", value)):
        return "no duration"
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(value))
    return errors[0].message if errors else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    schemas = SCHEMAS + [random_schema(rng, 3) for _ in range(6 * options.samples)]
    lines = "".join(json.dumps(s) + "\n" for s in schemas)
    command = [options.program, str(options.samples), str(options.seed)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(schemas), (len(answers), len(schemas))
    judged = refused = empty = wrong = 0
    for number, (schema, answer) in enumerate(zip(schemas, answers)):
        if "error" in answer:
            refused += 1
            known = "not supported|allows nothing|not allowed|no array has|no object has|no multiple|too"
            may_be_refused = number >= len(SCHEMAS) and re.search(known, answer["error"])
            if not may_be_refused:
                wrong += 1
                print(f"refused: {json.dumps(schema)}: {answer['error']}")
            continue
        empty += not answer["samples"]
        for text in answer["samples"]:
            judged += 1
            problem = check(schema, text)
            if problem and (wrong := wrong + 1) < 20:
                print(f"{json.dumps(schema)}\n  {text!r}\n  {problem}")
    print(f"{judged} texts of {len(schemas)} schemas judged by jsonschema; {refused} schemas refused, "
          f"{empty} without a text, {wrong} wrong")
    return 1 if wrong or judged < 5 * options.samples or empty > len(schemas) // 4 or refused > len(schemas) // 4 else 0


if __name__ == "__main__":
    sys.exit(main())
