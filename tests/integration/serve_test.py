#!/usr/bin/env python3
"""`bellmetal serve` as its clients and its service manager see it.

usage: serve_test.py BELLMETAL [-k PATTERN] [unittest options]    classes: Serve (quick), ServeSlow
"""
import base64
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from gguf_keys import add_keys
from limits import seconds

BELLMETAL = ""
MODEL = "models/bundled/licence.gguf"
PROMPTS = ["Permission is hereby granted", "This program is free software; you can", "THE SOFTWARE IS PROVIDED",
           "Redistribution and use in source and binary forms"]
TOKENS = 24
RUNNING = []  # servers, to be ended whatever happens
# The comment says how the model would write calls: detect_chat_format().
TEMPLATE = "{# <tool_call> #}{% if tools %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}, "days": {"type": "integer", "maximum": 9, "minimum": 1}},
    "required": ["city", "days"], "additionalProperties": False}}}


def word_tokenizer():
    """The tokenizer.json of a small WordPiece."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "panda", "bear", "##s", "a", "what", "is", "it", "the", "?", ".", "(", ")", *("##" + c for c in letters)]
    names += [c for c in letters if c not in names][:64 - len(names)]
    added = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "added_tokens": [{"id": i, "content": name, **added} for i, name in enumerate(names[:5])],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                  "vocab": {name: i for i, name in enumerate(names)}}}


class Server:
    """A server on a port of its own; its log is read by a thread."""

    def __init__(self, *options, model=MODEL, environment=None, wait="ready", front=(), device="CPU", **popen):
        self.process = subprocess.Popen(
            [*front, BELLMETAL, "serve", model, "--listen", "127.0.0.1:0", "--device", device, *options],
            stderr=subprocess.PIPE, env={**os.environ, **(environment or {})}, text=True, **popen)
        self.lines, self.changed = [], threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        RUNNING.append(self.process)
        self.port = int(self.event("listening")["url"].rsplit(":", 1)[1])
        if wait:
            self.event(wait)

    def _read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.lines.append("")
            self.changed.notify_all()

    def event(self, name, matches=lambda line: True, limit=60):
        """The first line of the log with this event."""
        def find():
            for line in self.lines:
                if line.startswith("{") and json.loads(line).get("event") == name and matches(json.loads(line)):
                    return json.loads(line)
            if self.lines and self.lines[-1] == "":
                raise AssertionError("the server has ended: " + "".join(self.lines))
            return None
        with self.changed:
            if not self.changed.wait_for(find, seconds(limit)):
                raise AssertionError(f"no {name}: " + "".join(self.lines))
            return find()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds(60))

    def ask(self, method, path, body=None, **headers):
        """(status, headers, body) of one request; a dict or list becomes JSON."""
        connection = self.connect()
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if body is not None:
            headers = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        else:
            headers = {k.replace("_", "-"): v for k, v in headers.items()}
        try:
            connection.request(method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was sent: the answer is there all the same
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.headers, data

    def complete(self, prompt, path="/v1/completions", **fields):
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, **fields}
        status, _, data = self.ask("POST", path, body)
        if status != 200:
            raise AssertionError(f"{status} {data}")
        return json.loads(data)

    def events(self, path, body):
        """Objects of a stream; the last one must be [DONE]."""
        status, headers, data = self.ask("POST", path, {**body, "stream": True})
        assert status == 200 and headers["Content-Type"] == "text/event-stream", (status, data)
        blocks = data.decode().split("\n\n")
        assert blocks.pop() == "" and blocks.pop() == "data: [DONE]", data
        assert all(b.startswith("data: ") for b in blocks), data
        return [json.loads(b[6:]) for b in blocks]

    def metrics(self):
        """{name{labels}: value}; every line is checked against the text format."""
        status, headers, data = self.ask("GET", "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        out, types = {}, {}
        for line in data.decode().splitlines():
            if line.startswith("# TYPE "):
                name, kind = line[7:].split(" ")
                assert name not in types, line
                types[name] = kind
            elif not line.startswith("# HELP "):
                match = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*\})? (\S+)', line)
                assert match, line
                family = re.sub(r"_(bucket|sum|count)$", "", match[1])
                assert match[1] in types or types.get(family) == "histogram", line
                out[match[1] + (match[2] or "")] = float(match[3])
        return out

    def metric(self, name):
        return sum(v for k, v in self.metrics().items() if k == name or k.startswith(name + "{"))

    def stop(self, limit=60):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait(limit)

    def wait(self, limit=60):
        code = self.process.wait(seconds(limit))
        self.reader.join()
        self.process.stderr.close()
        return code


def until(condition, limit=30):
    end = time.monotonic() + seconds(limit)
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it does not happen")
        time.sleep(0.005)


def generate(prompt):
    out = subprocess.run([BELLMETAL, "generate", MODEL, prompt, "--max-tokens", str(TOKENS), "--json", "--device", "CPU"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(out.stdout)["text"]


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        template = os.path.join(cls.folder.name, "template.jinja")
        with open(template, "w", encoding="utf-8") as file:
            file.write(TEMPLATE)
        cls.key = "open-sesame"
        cls.server = Server("--chat-template", template, "--max-body", "1", "--sequences", "4")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.folder.cleanup()
        assert code == 0, code

    def test_eight_clients_get_what_generate_gives(self):
        expected = {p: generate(p) for p in PROMPTS}
        results = [None] * 8

        def client(i):
            results[i] = self.server.complete(PROMPTS[i % 4])["choices"][0]["text"]
        threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(results, [expected[PROMPTS[i % 4]] for i in range(8)])

    def test_a_stream_has_the_text_of_the_whole_answer(self):
        whole = self.server.complete(PROMPTS[0])
        self.assertEqual(whole["object"], "text_completion")
        self.assertEqual(whole["choices"][0]["finish_reason"], "length")
        self.assertEqual(whole["usage"]["completion_tokens"], TOKENS)
        body = {"prompt": PROMPTS[0], "max_tokens": TOKENS, "temperature": 0, "stream_options": {"include_usage": True}}
        events = self.server.events("/v1/completions", body)
        self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), whole["choices"][0]["text"])
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "length")
        self.assertEqual(events[-1]["choices"], [])
        self.assertEqual(events[-1]["usage"]["completion_tokens"], TOKENS)

    def test_batches_of_other_libraries_fit(self):
        # LangChain sends 20 prompts at a time.
        got = self.server.complete([f"{i} {PROMPTS[i % 4]}" for i in range(100)], max_tokens=1)
        self.assertEqual([c["index"] for c in got["choices"]], list(range(100)))

    def test_usage_can_be_in_every_event(self):
        body = {"prompt": PROMPTS[0], "max_tokens": TOKENS, "temperature": 0,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        events = self.server.events("/v1/completions", body)
        counts = [e["usage"]["completion_tokens"] for e in events]
        self.assertEqual((counts, counts[-1]), (sorted(counts), TOKENS))
        self.assertGreater(counts[0], 0)
        self.assertEqual({e["usage"]["prompt_tokens"] for e in events}, {events[-1]["usage"]["prompt_tokens"]})

    def test_nothing_ends_a_text_before_min_tokens(self):
        ends = {"logit_bias": {"2": 100}}  # </s>
        self.assertEqual(self.server.complete(PROMPTS[0], **ends)["usage"]["completion_tokens"], 0)
        longer = self.server.complete(PROMPTS[0], min_tokens=7, **ends)
        self.assertEqual((longer["usage"]["completion_tokens"], longer["choices"][0]["finish_reason"]), (7, "stop"))
        text = self.server.complete(PROMPTS[0], max_tokens=7)["choices"][0]["text"]
        self.assertEqual(longer["choices"][0]["text"], text)
        # Nor does a stop text.
        stopped = self.server.complete(PROMPTS[0], min_tokens=7, stop=text[1])["choices"][0]
        self.assertTrue(stopped["text"].startswith(text), stopped)
        # A grammar that can do nothing else ends.
        self.assertEqual(self.server.complete("a", min_tokens=7, grammar='root ::= "yes"')["choices"][0]["text"], "yes")

    def test_chats(self):
        chat = {"messages": [{"role": "system", "content": "Permission is "}, {"role": "user", "content": "hereby granted"}],
                "max_completion_tokens": TOKENS, "temperature": 0}
        status, _, data = self.server.ask("POST", "/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2})
        self.assertEqual(status, 200, data)
        choice = json.loads(data)["choices"][0]
        self.assertEqual(choice["message"]["content"], self.server.complete(PROMPTS[0])["choices"][0]["text"])
        content = choice["logprobs"]["content"]
        self.assertEqual(len(content), TOKENS)
        for token in content:
            self.assertEqual(token["top_logprobs"][0]["token"], token["token"])
            self.assertLessEqual(token["logprob"], 0)
            self.assertGreaterEqual(token["logprob"], token["top_logprobs"][1]["logprob"])
        events = self.server.events("/v1/chat/completions", chat)
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
        self.assertEqual(text, choice["message"]["content"])

    def chat(self, **fields):
        body = {"messages": [{"role": "user", "content": "Permission is"}], "max_tokens": 200, "temperature": 0, **fields}
        status, _, data = self.server.ask("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 200, data)
        return json.loads(data)["choices"][0]

    def test_answers_keep_to_a_schema(self):
        schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 5}, "b": {"enum": ["x", "y"]}},
                  "required": ["a", "b"], "additionalProperties": False}
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
        for temperature in (0, 2):
            choice = self.chat(response_format=wanted, temperature=temperature)
            value = json.loads(choice["message"]["content"])
            self.assertTrue(value["a"] in (3, 4, 5) and value["b"] in ("x", "y") and len(value) == 2, value)
            self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(self.server.complete("a", grammar='root ::= "yes" | "no"')["choices"][0]["text"] in ("yes", "no"), True)
        status, _, data = self.server.ask("POST", "/v1/completions", {"prompt": "a", "grammar": "root ::= ("})
        self.assertEqual((status, json.loads(data)["error"]["param"]), (400, "grammar"))

    def test_calls_of_tools(self):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            got = self.chat(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
            self.assertEqual((got["finish_reason"], got["message"]["content"]), ("tool_calls", None))
            call, = got["message"]["tool_calls"]
            self.assertEqual((call["type"], call["function"]["name"]), ("function", "weather"))
            arguments = json.loads(call["function"]["arguments"])
            self.assertIn(arguments["city"], ("Bern", "Rome"))
            self.assertIn(arguments["days"], range(1, 10))
        # The same as a stream: a name first, then pieces of the arguments.
        events = self.server.events("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Permission is"}], "temperature": 0, "max_tokens": 200, "tools": [WEATHER],
            "tool_choice": choice})
        pieces = [c for e in events for c in e["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual(pieces[0]["function"]["name"], "weather")
        self.assertTrue(pieces[0]["id"] and all("id" not in p for p in pieces[1:]) and len(pieces) > 1, pieces)
        self.assertEqual("".join(p["function"]["arguments"] for p in pieces), call["function"]["arguments"])
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")
        # Nobody is made to call, and what the model says is text.
        other = {"type": "function", "function": {"name": "other"}}
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}}
        got = self.chat(tools=[other, WEATHER], tool_choice=allowed, parallel_tool_calls=False)
        self.assertEqual([c["function"]["name"] for c in got["message"]["tool_calls"]], ["weather"])
        free = self.chat(tools=[WEATHER], max_tokens=5)
        self.assertEqual((free["finish_reason"], "tool_calls" in free["message"]), ("length", False))

    def test_responses_are_chats_in_another_form(self):
        chat = {"messages": [{"role": "user", "content": PROMPTS[0]}], "temperature": 0, "max_tokens": TOKENS}
        text = json.loads(self.server.ask("POST", "/v1/chat/completions", chat)[2])["choices"][0]["message"]["content"]
        body = {"input": PROMPTS[0], "temperature": 0, "max_output_tokens": TOKENS}
        status, _, data = self.server.ask("POST", "/v1/responses", body)
        self.assertEqual(status, 200, data)
        whole = json.loads(data)
        self.assertEqual([whole["object"], whole["status"], whole["store"], whole["error"]], ["response", "incomplete", False, None])
        self.assertEqual(whole["output"][0]["content"], [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}])
        self.assertEqual(whole["usage"]["output_tokens"], TOKENS)
        self.assertEqual(whole["usage"]["total_tokens"], TOKENS + whole["usage"]["input_tokens"])
        status, headers, data = self.server.ask("POST", "/v1/responses", {**body, "stream": True})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
        blocks = [b.split("\n") for b in data.decode().split("\n\n")[:-1]]
        events = [json.loads(b[1].removeprefix("data: ")) for b in blocks]
        self.assertEqual([b[0] for b in blocks], ["event: " + e["type"] for e in events])
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual("".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"), text)
        self.assertEqual(events[0]["response"]["status"], "in_progress")
        last = events[-1]
        self.assertEqual(last["type"], "response.incomplete")
        self.assertEqual(last["response"]["output"][0]["content"], whole["output"][0]["content"])
        for extra, error in (({"store": True}, "store"), ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                             ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}}, "text.format"),
                             ({"tools": [{"type": "function", "name": "f", "parameters": {"not": {}}}], "tool_choice": "required"},
                              "tools[0].parameters")):
            status, _, data = self.server.ask("POST", "/v1/responses", {**body, **extra})
            self.assertEqual((status, json.loads(data)["error"]["param"]), (400, error), data)

    def test_repetitions_do_not_go_on(self):
        prompt = "free software and free software and free"
        plain = self.server.complete(prompt)["choices"][0]["text"]
        self.assertTrue(plain.startswith(" "), plain)
        for fields, goes_on in (({"dry_sequence_breakers": []}, False), ({"dry_penalty_last_n": 0}, True),
                                ({"dry_sequence_breakers": ["e", "fr"]}, True), ({"dry_allowed_length": 1000}, True)):
            text = self.server.complete(prompt, dry_multiplier=100, **fields)["choices"][0]["text"]
            self.assertEqual(text.startswith(plain[:2]), goes_on, (fields, text))

    def test_penalties_and_biases(self):
        plain = self.server.complete(PROMPTS[0])["choices"][0]["text"]
        self.assertNotEqual(self.server.complete(PROMPTS[0], repetition_penalty=50)["choices"][0]["text"], plain)
        tokens = json.loads(self.server.ask("POST", "/tokenize", {"prompt": plain, "add_special_tokens": False})[2])["tokens"]
        banned = self.server.complete(PROMPTS[0], logit_bias={str(t): -100 for t in set(tokens)})["choices"][0]["text"]
        again = json.loads(self.server.ask("POST", "/tokenize", {"prompt": banned, "add_special_tokens": False})[2])["tokens"]
        self.assertFalse(set(tokens) & set(again))

    def test_a_stream_of_control_tokens_has_no_text(self):
        # bench serve once took it for a broken one: no event tells of a token that has no text.
        events = self.server.events("/v1/completions", {
            "prompt": PROMPTS[0], "max_tokens": 5, "temperature": 0, "ignore_eos": True, "logit_bias": {"2": 100},  # </s>
            "stream_options": {"include_usage": True}})
        self.assertEqual([e["choices"][0]["text"] for e in events if e["choices"]], [""])
        self.assertEqual(events[0]["choices"][0]["finish_reason"], "length")
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 5)

    def test_embeddings(self):
        def embed(**fields):
            status, _, data = self.server.ask("POST", "/v1/embeddings", fields)
            self.assertEqual(status, 200, data)
            return json.loads(data)
        texts = ["Permission is hereby granted", "Permission is hereby granted.", "x" * 100]
        got = embed(input=texts)
        vectors = [d["embedding"] for d in got["data"]]
        self.assertEqual([d["index"] for d in got["data"]], [0, 1, 2])
        for v in vectors:
            self.assertAlmostEqual(sum(x * x for x in v), 1, places=5)
        self.assertNotEqual(vectors[0], vectors[1])
        self.assertEqual(embed(input=texts[0])["data"][0]["embedding"], vectors[0])
        raw = base64.b64decode(embed(input=[texts[2]], encoding_format="base64")["data"][0]["embedding"])
        self.assertEqual(list(struct.unpack(f"<{len(raw) // 4}f", raw)), [struct.unpack("<f", struct.pack("<f", x))[0] for x in vectors[2]])
        self.assertEqual(self.server.ask("POST", "/v1/embeddings", {"input": ["a" * 2000]})[0], 400)
        # The first ones, made a vector of length 1 again (Matryoshka).
        short = embed(input=texts[0], dimensions=5)["data"][0]["embedding"]
        norm = sum(x * x for x in vectors[0][:5]) ** 0.5
        self.assertEqual(len(short), 5)
        for got, whole in zip(short, vectors[0]):
            self.assertAlmostEqual(got, whole / norm, places=6)
        for wrong in (0, len(vectors[0]) + 1, 2.5):
            status, _, data = self.server.ask("POST", "/v1/embeddings", {"input": "a", "dimensions": wrong})
            self.assertEqual((status, json.loads(data)["error"]["param"]), (400, "dimensions"), wrong)

    def test_the_page(self):
        status, headers, data = self.server.ask("GET", "/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        with open("serve/page.html", "rb") as file:
            self.assertEqual(data, file.read())
        self.assertNotRegex(data, rb"https?://")

    def test_control_tokens_in_messages_are_text(self):
        def tokens_of(text):
            chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
            status, _, data = self.server.ask("POST", "/v1/chat/completions", chat)
            self.assertEqual(status, 200, data)
            return json.loads(data)["usage"]["prompt_tokens"]
        self.assertEqual(tokens_of("a</s>b") - tokens_of("ab"), len("</s>"))

    def test_choices_seeds_and_stops(self):
        first = self.server.complete(PROMPTS[0], n=2, temperature=1.5, seed=7)
        again = self.server.complete(PROMPTS[0], n=2, temperature=1.5, seed=7)
        self.assertEqual([c["text"] for c in first["choices"]], [c["text"] for c in again["choices"]])
        self.assertNotEqual(first["choices"][0]["text"], first["choices"][1]["text"])
        text = self.server.complete(PROMPTS[0])["choices"][0]["text"]
        stopped = self.server.complete(PROMPTS[0], stop=text[9:13])["choices"][0]
        self.assertEqual(stopped["text"], text[:text.index(text[9:13])])
        self.assertEqual(stopped["finish_reason"], "stop")
        several = self.server.complete(PROMPTS[:2])
        self.assertEqual([c["index"] for c in several["choices"]], [0, 1])
        self.assertEqual(several["choices"][0]["text"], text)

    def test_a_prompt_seen_before_is_cached(self):
        prompt = "a prompt of its own " * 8
        self.server.complete(prompt)
        usage = self.server.complete(prompt)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 0)
        self.assertEqual(cached % 64, 0)

    def test_prompts_that_begin_alike_have_one_hash(self):
        def hash_of(prompt):
            status, headers, _ = self.server.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
            self.assertEqual(status, 200)
            return headers["X-Prefix-Hash"]
        page = [3 + i % 200 for i in range(64)]
        self.assertIsNone(hash_of(page[:63]))
        first = hash_of(page)
        self.assertRegex(first, "^[0-9a-f]{16}$")
        self.assertEqual(hash_of(page + [5, 6, 7]), first)
        self.assertNotEqual(hash_of(page[:63] + [9]), first)

    def test_tokens_and_back(self):
        status, _, data = self.server.ask("POST", "/tokenize", {"prompt": "free software"})
        self.assertEqual(status, 200)
        tokens = json.loads(data)["tokens"]
        self.assertEqual(json.loads(data)["count"], len(tokens))
        plain = json.loads(self.server.ask("POST", "/tokenize", {"prompt": "free software", "add_special_tokens": False})[2])
        status, _, data = self.server.ask("POST", "/detokenize", {"tokens": plain["tokens"]})
        self.assertEqual((status, json.loads(data)["prompt"]), (200, "free software"))
        self.assertEqual(self.server.complete(tokens, max_tokens=4)["choices"][0]["text"],
                         self.server.complete("free software", max_tokens=4)["choices"][0]["text"])
        status, _, data = self.server.ask("POST", "/detokenize", {"tokens": [*plain["tokens"], 288]})
        self.assertEqual((status, json.loads(data)["error"]["param"]), (400, "tokens"))

    def test_logprobs_of_completions_say_where_their_tokens_are(self):
        body = {"grammar": 'root ::= "a\u00e9\u20acb"', "logprobs": 1, "prompt": "x", "temperature": 0, "max_tokens": 20}
        whole = self.server.complete("x", **{k: v for k, v in body.items() if k != "prompt"})["choices"][0]
        self.assertEqual(whole["text"], "a\u00e9\u20acb")
        logprobs = whole["logprobs"]
        # A token is a byte here: of one, two, three and one.
        self.assertEqual(logprobs["text_offset"], [0, 1, 1, 2, 2, 2, 3])
        for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
            self.assertIn(len(top), (1, 2))
            self.assertEqual(top[token], logprob)
        streamed = [e["choices"][0]["logprobs"] for e in self.server.events("/v1/completions", body)]
        self.assertEqual([o for piece in streamed if piece for o in piece["text_offset"]], logprobs["text_offset"])

    def test_prompts_are_echoed_and_scored(self):
        text = "Permission is h\u00e9\u20ac"
        tokens = json.loads(self.server.ask("POST", "/tokenize", {"prompt": text})[2])["tokens"]
        self.assertEqual(tokens[0], 1)  # <s>
        scored = self.server.complete(text, echo=True, logprobs=20, max_tokens=0)
        choice, = scored["choices"]
        self.assertEqual((choice["text"], choice["finish_reason"]), (text, "length"))
        self.assertEqual(scored["usage"]["completion_tokens"], 0)
        logprobs = choice["logprobs"]
        self.assertEqual((logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]), (None, None))
        self.assertEqual({len(part) for part in logprobs.values()}, {len(tokens)})
        # A byte is a token here, before which stands one that is no text.
        self.assertEqual(logprobs["text_offset"], [0, *range(16), 15, 16, 16, 16])
        self.assertEqual(logprobs["tokens"][16:], ["bytes:\\xc3", "bytes:\\xa9", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"])
        # What each token's place is given by prompts that end before it.
        compared = 0
        near = {"delta": 3e-3}  # a prompt in pieces is rounded otherwise than token by token
        for i in range(1, len(tokens)):
            alone = self.server.complete(tokens[:i], max_tokens=1, logprobs=20)["choices"][0]["logprobs"]
            for name, value in alone["top_logprobs"][0].items():
                if name in logprobs["top_logprobs"][i]:
                    self.assertAlmostEqual(logprobs["top_logprobs"][i][name], value, **near)
                    compared += 1
                if name == logprobs["tokens"][i]:
                    self.assertAlmostEqual(logprobs["token_logprobs"][i], value, **near)
        self.assertGreater(compared, 15 * len(tokens))
        # With an answer behind it, of tokens, several, and as a stream.
        plain = self.server.complete(tokens, logprobs=1)["choices"][0]
        both, other = self.server.complete([tokens, tokens[:4]], echo=True, logprobs=1)["choices"]
        self.assertEqual(both["text"], text + plain["text"])
        self.assertEqual(both["logprobs"]["tokens"], logprobs["tokens"] + plain["logprobs"]["tokens"])
        self.assertTrue(other["text"].startswith("Per"))
        self.assertEqual(other["logprobs"]["text_offset"][:6], [0, 0, 1, 2, 3, 4])
        body = {"prompt": tokens, "max_tokens": TOKENS, "temperature": 0, "echo": True, "logprobs": 1}
        events = [e["choices"][0] for e in self.server.events("/v1/completions", body)]
        self.assertEqual("".join(e["text"] for e in events), both["text"])
        self.assertEqual([t for e in events if e["logprobs"] for t in e["logprobs"]["tokens"]], both["logprobs"]["tokens"])
        self.assertEqual(self.server.complete(text, echo=True)["choices"][0]["text"], both["text"])
        self.assertEqual(self.server.complete(text, max_tokens=0)["choices"][0]["text"], "")

    def test_logprobs_lose_no_token(self):
        # Bytes that begin or go on with a character look alike as text; all have names of their own.
        found = set()
        for prompt in ("\u00e9\u20ac", "a\u4e2d\u6587", PROMPTS[0]):
            choice = self.server.complete(prompt, logprobs=20, echo=True, max_tokens=4)["choices"][0]
            for top in choice["logprobs"]["top_logprobs"][1:]:
                self.assertIn(len(top), (20, 21))
                found.update(name for name in top if name.startswith("bytes:"))
                self.assertFalse([name for name in top if "\ufffd" in name])
        self.assertGreater(len(found), 5)

    def test_the_best_of_several(self):
        fields = {"temperature": 1.5, "seed": 11, "logprobs": 1, "max_tokens": 12}
        alone = self.server.complete(PROMPTS[:2], n=5, **fields)
        best = self.server.complete(PROMPTS[:2], n=2, best_of=5, **fields)
        mean = lambda c: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
        expected = [c["text"] for half in (alone["choices"][:5], alone["choices"][5:]) for c in sorted(half, key=mean, reverse=True)[:2]]
        self.assertEqual([c["text"] for c in best["choices"]], expected)
        self.assertEqual([c["index"] for c in best["choices"]], [0, 1, 2, 3])
        self.assertEqual(best["usage"]["completion_tokens"], alone["usage"]["completion_tokens"])
        quiet = self.server.complete(PROMPTS[:2], n=2, best_of=5, **{**fields, "logprobs": None})
        self.assertEqual([(c["text"], c["logprobs"]) for c in quiet["choices"]], [(t, None) for t in expected])

    def answer(self, path, body=None, expected=200):
        status, _, data = self.server.ask("GET" if body is None else "POST", path, body)
        self.assertEqual(status, expected, data)
        return json.loads(data)

    def native_events(self, body, path="/completion"):
        status, headers, data = self.server.ask("POST", path, {**body, "stream": True})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"), data)
        return [json.loads(block[block.index("data: ") + 6:]) for block in data.decode().split("\n\n")[:-1]]

    def test_llama_servers_fields_in_openais_forms(self):
        greedy = self.server.complete(PROMPTS[0])["choices"][0]["text"]
        fields = {"temperature": 1.5, "top_k": 1, "samplers": ["top_k", "temperature", "adaptive_p"], "cache_prompt": True, "id_slot": 0, "min_keep": 0,
                  "mirostat": 0, "lora": [], "t_max_predict_ms": -1, "n_keep": 0, "repeat_penalty": 1.0, "repeat_last_n": 64, "typ_p": 1.0}
        whole = self.server.complete(PROMPTS[0], n_probs=2, **fields)
        self.assertEqual(whole["choices"][0]["text"], greedy)
        self.assertEqual(whole["timings"]["predicted_n"], TOKENS)
        self.assertEqual(whole["timings"]["prompt_n"] + whole["timings"]["cache_n"], whole["usage"]["prompt_tokens"])
        tokens = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual("".join(t["token"] for t in tokens), greedy)
        self.assertEqual([len(t["top_logprobs"]) for t in tokens], [2] * TOKENS)
        chat = self.chat(n_probs=3, post_sampling_probs=True, max_tokens=-1, n_predict=4, top_k=2, temperature=1, seed=3)["logprobs"]["content"]
        self.assertEqual(len(chat), 4)
        for token in chat:
            self.assertAlmostEqual(sum(t["prob"] for t in token["top_probs"]), 1)
            self.assertIn((token["id"], token["prob"]), [(t["id"], t["prob"]) for t in token["top_probs"]])
        # A sampler that keeps what surprises least keeps one; false is never.
        self.assertEqual(self.server.complete(PROMPTS[0], temperature=1, mirostat=2, mirostat_tau=0.001, mirostat_eta=0)["choices"][0]["text"], greedy)
        banned = self.server.complete(PROMPTS[0], logit_bias=[[tokens[0]["id"], False], [greedy[1], False]])["choices"][0]["text"]
        self.assertTrue(greedy[0] not in banned and greedy[1] not in banned, banned)
        # Penalties of this name look back on the prompt, of the other on the answer alone.
        first = {"repeat_last_n": 64, "max_tokens": 1}
        self.assertNotEqual(self.server.complete("the software the software the ", repeat_penalty=50, **first)["choices"][0]["text"],
                            self.server.complete("the software the software the ", max_tokens=1, repetition_penalty=50)["choices"][0]["text"])
        for more, param in (({"lora": [{"id": 0, "scale": 1}]}, "lora"), ({"adaptive_target": 0.5}, "adaptive_target"), ({"samplers": ["beam"]}, "samplers"),
                            ({"n_probs": 2, "echo": True}, "n_probs"), ({"return_tokens": True}, "return_tokens"), ({"max_tokens": -3}, "max_tokens")):
            self.assertEqual(self.answer("/v1/completions", {"prompt": "a", **more}, 400)["error"]["param"], param)

    def test_streams_tell_progress_and_timings(self):
        prompt = "a prompt that is told about " * 7
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "return_progress": True, "timings_per_token": True}
        events = self.server.events("/v1/completions", body)
        progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
        self.assertEqual((progress[0]["processed"], progress[-1]["processed"]), (progress[0]["cache"], progress[0]["total"]))
        self.assertEqual([e["timings"]["predicted_n"] for e in events][-1], 3)
        self.assertTrue(all("timings" in e for e in events))
        native = self.native_events(body)
        self.assertEqual([e["stop"] for e in native], [False] * (len(native) - 1) + [True])
        self.assertEqual(native[0]["prompt_progress"]["cache"], native[-1]["timings"]["cache_n"])
        self.assertGreater(native[-1]["timings"]["cache_n"], 0)
        chat = self.server.events("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "return_progress": True})
        self.assertTrue([e for e in chat if "prompt_progress" in e])
        self.assertNotIn("timings", chat[0])
        self.assertIn("timings", chat[-1])

    def test_llama_servers_own_form(self):
        greedy = self.server.complete(PROMPTS[0], max_tokens=8)["choices"][0]["text"]
        # What SillyTavern sends, doubles for other servers and all.
        silly = {"prompt": PROMPTS[0], "max_new_tokens": 8, "max_tokens": 8, "n_predict": 8, "num_predict": 8, "temperature": 0, "top_k": 40, "typical": 1, "rep_pen": 1,
                 "repeat_penalty": 1, "repetition_penalty": 1, "repeat_last_n": 0, "add_bos_token": True, "smoothing_factor": 0, "stopping_strings": [], "stop": [],
                 "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"], "mirostat": 0, "mirostat_mode": 0,
                 "api_type": "llamacpp", "adaptive_target": -0.01, "n": 1, "grammar": "", "logit_bias": [], "cache_prompt": True, "n_probs": 3, "logprobs": 3}
        whole = self.answer("/completion", {**silly, "return_tokens": True})
        self.assertEqual(whole["content"], greedy)
        probabilities = whole["completion_probabilities"]
        self.assertEqual([t["id"] for t in probabilities], whole["tokens"])
        self.assertTrue(all(len(t["top_logprobs"]) == 3 and t["top_logprobs"][0]["logprob"] == t["logprob"] for t in probabilities))
        events = self.native_events(silly)
        self.assertEqual(sum((e.get("completion_probabilities", []) for e in events), []), probabilities)
        self.assertEqual(whole["generation_settings"]["samplers"][-1], "temperature")
        # Texts and tokens may stand side by side; control tokens in prompts are control tokens.
        bos, *tokens = self.answer("/tokenize", {"prompt": PROMPTS[0]})["tokens"]
        cut = len(tokens) // 2
        text = self.answer("/detokenize", {"tokens": tokens[cut:]})["content"]
        mixed = self.answer("/completion", {**silly, "prompt": [[bos, *tokens[:cut], text], {"prompt_string": "<s>" + PROMPTS[0]}]})
        self.assertEqual([m["content"] for m in mixed][0], greedy)
        self.assertEqual([m["tokens_evaluated"] for m in mixed], [len(tokens) + 1, len(tokens) + 2])
        self.assertEqual(self.answer("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, 400)["error"]["param"], "prompt")
        self.assertEqual(self.server.complete("a</s>b", max_tokens=1)["usage"]["prompt_tokens"], 4)

    def test_what_front_ends_ask_llama_server(self):
        for path in ("/health", "/v1/health"):
            self.assertEqual(self.answer(path), {"status": "ok"})
        props = self.answer("/props?model=licence")
        self.assertEqual((props["total_slots"], props["chat_template"], props["bos_token"], props["model_alias"]), (4, TEMPLATE, "<s>", "licence"))
        settings = props["default_generation_settings"]
        self.assertEqual((settings["n_ctx"], settings["params"]["top_k"], settings["params"]["repeat_last_n"]), (512, 40, 64))
        self.assertEqual(self.server.ask("GET", "/props?model=none")[0], 404)
        self.assertEqual([s["id"] for s in self.answer("/slots?fail_on_no_slot=1")], [0, 1, 2, 3])
        self.assertEqual(self.answer("/lora-adapters"), [])
        before = self.server.metrics()
        self.server.complete(PROMPTS[3], max_tokens=3)
        after = self.server.metrics()
        self.assertEqual([after["llamacpp:" + n] - before["llamacpp:" + n] for n in ("tokens_predicted_total", "requests_deferred")], [3, 0])
        self.assertGreater(after["llamacpp:prompt_tokens_total"] + after["llamacpp:prompt_tokens_cached_total"], before["llamacpp:prompt_tokens_total"])
        models = self.answer("/models")
        self.assertEqual((models, models["models"][0]["capabilities"]), (self.answer("/v1/models"), ["completion"]))
        self.assertEqual({k: models["data"][0]["meta"][k] for k in ("n_vocab", "n_ctx_train", "n_embd", "n_params")},
                         {"n_vocab": 288, "n_ctx_train": 512, "n_embd": 256, "n_params": 3221760})
        pieces = self.answer("/tokenize", {"content": "</s>aé", "with_pieces": True})["tokens"]
        self.assertEqual([p["piece"] for p in pieces], ["</s>", "a", [0xC3], [0xA9]])
        self.assertEqual(len(self.answer("/tokenize", {"content": "</s>a", "parse_special": False})["tokens"]), 5)
        chat = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}
        self.assertEqual(self.answer("/apply-template", chat), {"prompt": "ab"})
        vector = self.answer("/v1/embeddings", {"input": "a"})["data"][0]["embedding"]
        self.assertEqual(self.answer("/embedding", {"content": ["a", "b"]})[0], {"index": 0, "embedding": [vector]})
        raw = self.answer("/embeddings", {"input": "a", "embd_normalize": -1})[0]["embedding"][0]
        length = sum(v * v for v in raw) ** 0.5
        self.assertTrue(length > 2 and all(abs(r / length - v) < 1e-6 for r, v in zip(raw, vector)), length)
        self.assertAlmostEqual(max(abs(v) for v in self.answer("/embedding", {"content": "a", "embd_normalize": 0})[0]["embedding"][0]), 32760, places=2)

    def test_messages_are_chats_in_anthropics_form(self):
        text = self.chat(max_tokens=8)["message"]["content"]
        body = {"model": "licence", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": [{"type": "text", "text": "Permission is"}]}]}
        whole = self.answer("/v1/messages", body)
        self.assertEqual((whole["type"], whole["role"], whole["content"], whole["stop_reason"]), ("message", "assistant", [{"type": "text", "text": text}], "max_tokens"))
        self.assertEqual(whole["usage"]["output_tokens"], 8)
        events = self.native_events(body, "/v1/messages")
        self.assertEqual([e["type"] for e in events if e["type"] != "content_block_delta"],
                         ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"])
        self.assertEqual("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"), text)
        count = self.answer("/v1/messages/count_tokens", {k: body[k] for k in ("model", "messages")})["input_tokens"]
        self.assertEqual(count, whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"])
        tool = {"name": "weather", "description": "", "input_schema": WEATHER["function"]["parameters"]}
        called = self.answer("/v1/messages", {**body, "max_tokens": 200, "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}})
        block, = called["content"]
        self.assertEqual((block["type"], block["name"], called["stop_reason"]), ("tool_use", "weather", "tool_use"))
        self.assertIn(block["input"]["city"], ("Bern", "Rome"))
        stopped = self.answer("/v1/messages", {**body, "stop_sequences": [text[4:6]]})
        self.assertEqual((stopped["content"][0]["text"], stopped["stop_reason"], stopped["stop_sequence"]), (text[:text.index(text[4:6])], "stop_sequence", text[4:6]))

    def test_what_is_wrong_is_said_in_openais_form(self):
        for path, body, status in [
                ("/v1/completions", "{", 400), ("/v1/completions", "[]", 400), ("/v1/completions", "", 400),
                ("/v1/completions", {"prompt": 7}, 400), ("/v1/completions", "[" * 100000, 400),
                ("/v1/completions", {"prompt": "a", "model": "none"}, 404),
                ("/v1/completions", {"prompt": "a", "max_tokens": 513}, 400),
                ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400),
                ("/v1/completions", {"prompt": "a" * 600}, 400), ("/v1/completions", {"prompt": [100000]}, 400),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400),
                ("/v1/nothing", {}, 404), ("/v1/completions", "x" * (2 << 20), 413)]:
            got, headers, data = self.server.ask("POST", path, body)
            self.assertEqual(got, status, (path, str(body)[:50], data))
            error = json.loads(data)["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"})
            self.assertTrue(error["message"] and headers["X-Request-Id"])
        for content_type, status in [("text/plain", 415), ("application/jsonx", 415), ("application/json ;charset=utf-8", 200),
                                     ("Application/JSON", 200)]:
            self.assertEqual(self.server.ask("POST", "/tokenize", '{"prompt": "a"}', Content_Type=content_type)[0], status, content_type)

    def test_methods_are_those_of_http(self):
        for method, path, allowed in [("GET", "/v1/completions", "POST"), ("HEAD", "/v1/completions", "POST"),
                                      ("POST", "/readyz", "GET, HEAD"), ("DELETE", "/v1/models/licence", "GET, HEAD")]:
            status, headers, _ = self.server.ask(method, path, None if method == "HEAD" else "{}")
            self.assertEqual((status, headers["Allow"]), (405, allowed), (method, path))
        for path in ("/", "/livez", "/readyz", "/v1/models", "/v1/models/licence"):
            status, headers, data = self.server.ask("HEAD", path)
            self.assertEqual((status, data), (200, b""), path)
            self.assertEqual(headers["Content-Length"], str(len(self.server.ask("GET", path)[2])), path)
        self.assertEqual(self.server.ask("HEAD", "/v1/models/none")[0], 404)

    def test_heads_of_requests_are_read_as_http_says(self):
        def talk(data):
            with socket.create_connection(("127.0.0.1", self.server.port), seconds(30)) as s:
                s.sendall(data)
                answer = b""
                while part := s.recv(1 << 16):
                    answer += part
                return answer
        head = b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15\r\n"
        body = b"\r\n{\"prompt\": \"a\"}GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        same = talk(b"POST /tokenize" + head + b"Content-Length: 15\r\n" + body)
        self.assertTrue(same.startswith(b"HTTP/1.1 200 ") and same.endswith(b"alive\n"), same)
        for what in (b"POST /tokenize", b"GET /livez"):
            for more in (b"Content-Length: 3\r\n", b"content-length: 50\r\n"):
                answer = talk(what + head + more + body)
                self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
                self.assertNotIn(b"alive", answer)  # what the body hides is no request
        for target, status in [(b"http://x/livez", 200), (b"HTTP://x:80/livez", 200), (b"http://x", 200), (b"http://x/nothing", 404)]:
            self.assertTrue(talk(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target)
                            .startswith(b"HTTP/1.1 %d " % status), target)

    def talk(self, data):
        """The answers to raw bytes: [(status, headers, body)], those without a body last."""
        with socket.create_connection(("127.0.0.1", self.server.port), seconds(30)) as s:
            try:
                s.sendall(data)
            except OSError:
                pass  # refused before all of it was sent
            text = b""
            try:
                while part := s.recv(1 << 16):
                    text += part
            except ConnectionError:
                pass
        answers = []
        while text:
            head, _, text = text.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            size = int(headers.get("content-length", 0))
            answers.append((int(first.split()[1]), headers, text[:size]))
            text = text[size:]
        return answers

    def refused(self, data, status):
        """The one answer to raw bytes is an error in OpenAI's form."""
        (got, headers, body), = self.talk(data)
        self.assertEqual((got, headers["content-type"]), (status, "application/json"), (data[:80], body))
        error = json.loads(body)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        line = self.server.event("request", lambda l: l["id"] == headers["x-request-id"])
        self.assertEqual(line["status"], status)
        return error

    def test_what_is_no_http_is_refused_in_openais_form(self):
        end = b"Host: x\r\nConnection: close\r\n\r\n"
        post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        before = self.server.metrics()['bellmetal:http_responses_total{class="4xx"}']
        for data, status in [
                (b"GET  HTTP/1.1\r\n" + end, 400), (b"GET /livez\r\n\r\n", 400), (b"GET /livez HTTP/1.1\r\nHost x\r\n\r\n", 400),
                (post + b"Content-Length: ten\r\n\r\n{}", 400), (post + b"Content-Length: -2\r\n\r\n{}", 400),
                (post + b"Content-Length: 99999999999999999999999\r\n\r\n{}", 413),
                (post + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n", 400),
                (post + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n", 413),
                (post + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
                (b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n" + end, 414),
                (b"GET /livez HTTP/1.1\r\nX: " + b"a" * 100000 + b"\r\n" + end, 431),
                (b"GET /livez HTTP/1.1\r\n" + b"X: a\r\n" * 20000 + end, 431),
                (b"GET /livez HTTP/1.1\r\n\r\n", 400), (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
                (b"GET /livez%00x HTTP/1.1\r\n" + end, 400), (b"GET /livez?a=%00 HTTP/1.1\r\n" + end, 400)]:
            self.assertEqual(self.refused(data, status)["type"], "invalid_request_error")
        self.assertEqual(self.server.metrics()['bellmetal:http_responses_total{class="4xx"}'], before + 16)
        self.assertEqual(self.refused(post + b"Transfer-Encoding: gzip\r\n\r\n", 501)["type"], "invalid_request_error")
        self.assertEqual(self.refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505)["type"], "server_error")
        # What is whole before it is answered.
        first, second = self.talk(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\n\r\n")
        self.assertEqual((first[0], second[0]), (200, 400))
        self.assertEqual(self.talk(b"GET /livez HTTP/1.0\r\n\r\n")[0][0], 200)  # which knows no Host

    def test_bodies_are_taken_as_they_are(self):
        for coding, status in [("gzip", 415), ("br", 415), ("identity", 200), ("Identity", 200)]:
            got, _, data = self.server.ask("POST", "/tokenize", '{"prompt": "a"}', Content_Encoding=coding)
            self.assertEqual(got, status, (coding, data))

    def test_schemas_of_tools_that_are_wrong_are_said(self):
        endless = {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}
        status, _, data = self.server.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "a"}], "tools": [endless], "tool_choice": "required"})
        self.assertEqual((status, json.loads(data)["error"]["param"]), (400, "tools"), data)

    def test_an_error_is_the_last_event_of_its_stream(self):
        status, _, data = self.server.ask("POST", "/v1/completions", {
            "prompt": "a", "max_tokens": 500, "n": 2, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
            "timeout": 0.001})
        self.assertEqual(status, 200)
        blocks = data.decode().split("\n\n")
        self.assertEqual(blocks.pop(), "")
        self.assertEqual(json.loads(blocks.pop()[6:])["error"]["code"], "timeout")
        self.assertNotIn("error", "".join(blocks))

    def test_templates_that_write_nothing_are_said(self):
        with tempfile.TemporaryDirectory() as folder:
            def template(name, text):
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                return path
            hello = {"messages": [{"role": "user", "content": "hello"}]}
            cases = [([], "no chat template"), (["--chat-template", template("silent", "{% if false %}x{% endif %}")], "writes nothing")]
            for options, cause in cases:
                server = Server(*options)
                status, _, data = server.ask("POST", "/v1/chat/completions", hello)
                error = json.loads(data)["error"]
                self.assertEqual((status, error["param"]), (400, "messages"))
                self.assertIn(cause, error["message"])
                self.assertEqual(len(server.complete("a", max_tokens=2)["choices"]), 1)  # the rest goes on
                self.assertEqual(server.stop(), 0)
            server = Server("--chat-template", template("empty", ""), wait=None)
            self.assertEqual(server.wait(), 4)
            self.assertIn("empty", "".join(server.lines))

    def test_bodies_without_a_length_are_bounded_too(self):
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                      b"Transfer-Encoding: chunked\r\n\r\n")
            try:
                for _ in range(200):
                    s.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            except OSError:
                pass
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            try:
                s.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n")
                self.assertRegex(s.recv(100), rb"^(HTTP/1.1 4|$)")
            except ConnectionError:
                pass
        self.assertEqual(self.server.ask("GET", "/livez")[0], 200)

    def test_a_client_that_goes_away_frees_its_place(self):
        cancelled = 'bellmetal:request_success_total{model_name="licence",finished_reason="abort"}'
        before = self.server.metrics()[cancelled]
        expected = self.server.complete(PROMPTS[1])["choices"][0]["text"]
        for is_stream in (True, False):
            connection = self.server.connect()
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": "one", "max_tokens": 480, "n": 16, "stream": is_stream}), {"Content-Type": "application/json"})
            if is_stream:
                self.assertTrue(connection.getresponse().read(10))
            else:
                until(lambda: self.server.metric("bellmetal:num_requests_running") > 0)
            connection.close()
            # Somebody else's answer is what it always is.
            self.assertEqual(self.server.complete(PROMPTS[1])["choices"][0]["text"], expected)
        # Of its choices those that an idle machine has not finished meanwhile.
        until(lambda: self.server.metrics()[cancelled] >= before + 2)
        until(lambda: self.server.metric("bellmetal:kv_cache_pages_used") == 0)

    def test_probes_and_models(self):
        self.assertEqual(self.server.ask("GET", "/livez")[0], 200)
        self.assertEqual(self.server.ask("GET", "/readyz")[0], 200)
        models = json.loads(self.server.ask("GET", "/v1/models")[2])
        self.assertEqual([m["id"] for m in models["data"]], ["licence"])
        self.assertEqual(json.loads(self.server.ask("GET", "/v1/models/licence")[2]), models["data"][0])
        for name in ("none", ""):
            status, _, data = self.server.ask("GET", "/v1/models/" + name)
            self.assertEqual((status, json.loads(data)["error"]["code"]), (404, "model_not_found"))

    def test_metrics_count(self):
        before = self.server.metrics()
        self.server.complete(PROMPTS[2], max_tokens=5)
        after = self.server.metrics()
        label = '{model_name="licence"}'
        self.assertEqual(after["bellmetal:generation_tokens_total" + label], before["bellmetal:generation_tokens_total" + label] + 5)
        for name, more in [("time_to_first_token_seconds", 1), ("inter_token_latency_seconds", 4),
                           ("e2e_request_latency_seconds", 1), ("request_queue_time_seconds", 1)]:
            key = f"bellmetal:{name}_count{label}"
            self.assertEqual(after[key], before[key] + more, name)
            infinite = f'bellmetal:{name}_bucket{{model_name="licence",le="+Inf"}}'
            self.assertEqual(after[infinite], after[key])

    def test_requests_are_logged_and_keys_are_not(self):
        _, headers, _ = self.server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2},
                                        Authorization="Bearer never-to-be-seen")
        line = self.server.event("request", lambda l: l["id"] == headers["X-Request-Id"])
        self.assertEqual((line["status"], line["completion_tokens"], line["finish"]), (200, 2, "length"))
        self.assertNotIn("never-to-be-seen", "".join(self.server.lines))


class ServeSlow(unittest.TestCase):
    def test_keys(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("open-sesame\n")
            file.flush()
            server = Server("--api-key-file", file.name)
            for given, status in [({}, 401), ({"Authorization": "Bearer open"}, 401), ({"Authorization": "open-sesame"}, 401),
                                  ({"Authorization": "Bearer open-sesame"}, 200), ({"Authorization": "bearer open-sesame"}, 200),
                                  ({"Authorization": "Bearer Open-Sesame"}, 401), ({"X_Api_Key": "open-sesame"}, 200), ({"X_Api_Key": "open"}, 401),
                                  ({"X_Api_Key": "open-sesame", "Authorization": "Bearer open"}, 401)]:
                self.assertEqual(server.ask("GET", "/v1/models", **given)[0], status, given)
            self.assertEqual(server.ask("GET", "/readyz")[0], 200)
            self.assertEqual(server.stop(), 0)
            self.assertNotIn("sesame", "".join(server.lines))

    def test_pages_of_other_origins_ask_where_they_may(self):
        page, other = "http://localhost:3000", "https://other.example"
        ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}
        cors = lambda headers: {k.lower(): v for k, v in headers.items() if k.lower().startswith("access-control") or k == "Vary"}

        def preflight(server, origin, path="/v1/responses", **more):
            status, headers, data = server.ask("OPTIONS", path, None, Origin=origin, **{**ask, **more})
            return status, cors(headers), data
        closed = Server()
        self.assertEqual(preflight(closed, page)[:2], (405, {}))
        self.assertEqual(cors(closed.ask("GET", "/v1/models", Origin=page)[1]), {})
        self.assertEqual(closed.stop(), 0)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("sesame\n")
            file.flush()
            server = Server("--api-key-file", file.name, "--cors-origin", page, "--cors-origin", "https://a.example")
        allowed = {"vary": "Origin", "access-control-allow-origin": page,
                   "access-control-expose-headers": "X-Request-Id, X-Prefix-Hash, Retry-After"}
        # The question comes without a key.
        self.assertEqual(preflight(server, page), (204, {**allowed, "access-control-allow-methods": "POST", "access-control-max-age": "600",
                                                         "access-control-allow-headers": ask["Access-Control-Request-Headers"]}, b""))
        self.assertEqual(preflight(server, page, "/v1/models")[1]["access-control-allow-methods"], "GET, HEAD")
        self.assertEqual(preflight(server, page, "/nothing")[0], 404)
        status, headers, data = preflight(server, other)
        self.assertEqual((status, headers), (403, {"vary": "Origin"}))
        self.assertIn("--cors-origin", json.loads(data)["error"]["message"])
        # Answers, errors among them, can be read; those to others cannot.
        for origin, expected in ((page, allowed), (other, {"vary": "Origin"}), (page + "x", {"vary": "Origin"}), ("null", {"vary": "Origin"})):
            for key, code in (("Bearer sesame", 200), ("Bearer wrong", 401)):
                status, headers, _ = server.ask("POST", "/tokenize", {"prompt": "a"}, Origin=origin, Authorization=key)
                self.assertEqual((status, cors(headers)), (code, expected))
        self.assertEqual(server.stop(), 0)
        server = Server(environment={"BM_SERVE_CORS_ORIGIN": "*"})
        self.assertEqual(preflight(server, other)[1]["access-control-allow-origin"], "*")
        status, headers, _ = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "stream": True}, Origin=other)
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "*"))
        self.assertIsNone(server.ask("GET", "/v1/models")[1]["Access-Control-Allow-Origin"])
        self.assertEqual(server.stop(), 0)
        done = subprocess.run([BELLMETAL, "serve", MODEL, "--cors-origin", "https://a.example/"], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("https://chat.example.org", done.stderr)

    def test_options_come_from_the_environment_and_strangers_are_kept_out(self):
        server = Server(environment={"BM_SERVE_CTX": "64", "BM_SERVE_SEQUENCES": "1"})
        self.assertEqual(json.loads(server.ask("GET", "/v1/models")[2])["data"][0]["max_model_len"], 64)
        self.assertEqual(server.stop(), 0)
        refused = subprocess.run([BELLMETAL, "serve", MODEL, "--listen", "0.0.0.0:0"], stderr=subprocess.PIPE, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn(b"--api-key-file", refused.stderr)
        for options, code, cause in [(["/nonexistent.gguf"], 4, b"/nonexistent.gguf"), ([MODEL, "--ctx", "513"], 2, b"--ctx 513"),
                                     (["m=" + MODEL, "--ctx", "513"], 2, b"512"), ([MODEL, "--device", "FOO"], 2, b"REF"),
                                     ([MODEL, "--device", "CPU,CPUU"], 2, b"CPU"), (["/tmp"], 4, b"/tmp/config.json")]:
            wrong = subprocess.run([BELLMETAL, "serve", *options, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, check=False)
            self.assertEqual(wrong.returncode, code, wrong)
            self.assertIn(cause, wrong.stderr)

    def test_what_a_file_recommends_goes_behind_what_is_asked_for(self):
        prompt = "Zebras"  # which it has not learned by heart
        plain = Server()
        greedy = plain.complete(prompt)["choices"][0]["text"]
        drawn = [plain.complete(prompt, temperature=1.8, seed=5, **more)["choices"][0]["text"] for more in ({}, {"top_k": 2})]
        first, = json.loads(plain.ask("POST", "/tokenize", {"prompt": greedy[0], "add_special_tokens": False})[2])["tokens"]
        self.assertEqual(plain.stop(), 0)
        self.assertEqual(len({greedy, *drawn}), 3)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.gguf")
            add_keys(MODEL, path, {"general.sampling.top_k": 1, "general.sampling.temp": 0.9})
            server = Server(model=path)

            def text(**fields):
                status, _, data = server.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": TOKENS, "seed": 5, **fields})
                self.assertEqual(status, 200, data)
                return json.loads(data)["choices"][0]["text"]
            self.assertEqual(text(), greedy)  # one candidate
            self.assertEqual(text(top_k=0, temperature=1.8), drawn[0])
            self.assertEqual(text(top_k=2, temperature=1.8), drawn[1])
            self.assertNotEqual(text(top_k=0), drawn[0])
            self.assertEqual(server.stop(), 0)
            add_keys(MODEL, path, {"tokenizer.ggml.suppress_tokens": [first, 100000], "general.sampling.temp": 0.0})
            server = Server(model=path)
            other = text()
            self.assertNotIn(greedy[0], other)
            self.assertEqual(server.stop(), 0)

    def test_gaps_are_filled_by_the_files_tokens(self):
        # The names of Code Llama's files, and the newer ones; any tokens will do.
        for names in ("{}_token_id", "fim_{:.3}_token_id"):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "fim.gguf")
                before, behind, middle = 270, 271, 272
                add_keys(MODEL, path, {"tokenizer.ggml." + names.format(role): token
                                       for role, token in (("prefix", before), ("suffix", behind), ("middle", middle))})
                server = Server(model=path)
                plain = lambda text: json.loads(server.ask("POST", "/tokenize", {"prompt": text, "add_special": False})[2])["tokens"]
                bos = json.loads(server.ask("POST", "/tokenize", {"prompt": ""})[2])["tokens"]
                # The answers of /infill of llama-server (libllama 0.7.0) with such a file.
                for text, suffix, llama in (("Permission is", " granted", " 1. By c"), ("", "of charge", " GNU GEN"), ("free", "\n", ". AGGREG")):
                    tokens = [*bos, before, *plain(text), behind, *plain(suffix), middle]
                    fields = {"logprobs": 1, "max_tokens": 8}
                    expected, got = (server.complete(p, **fields, **f) for p, f in ((tokens, {}), (text, {"suffix": suffix})))
                    self.assertEqual(got["usage"]["prompt_tokens"], len(tokens))
                    self.assertEqual(got["choices"], expected["choices"])
                    self.assertEqual(got["choices"][0]["text"], llama)
                    gap = {"input_prefix": text, "input_suffix": suffix, "n_predict": 8, "top_k": 1, "samplers": ["top_k"]}
                    status, _, data = server.ask("POST", "/infill", {**gap, "return_tokens": True})
                    self.assertEqual(status, 200, data)
                    answer = json.loads(data)
                    self.assertEqual((answer["content"], len(answer["tokens"]), answer["stop"], answer["stop_type"]), (llama, 8, True, "limit"))
                    self.assertEqual((answer["tokens_evaluated"], answer["tokens_predicted"], answer["tokens_cached"]), (len(tokens), 8, len(tokens) + 7))
                    self.assertEqual((answer["timings"]["prompt_n"] + answer["timings"]["cache_n"], answer["timings"]["predicted_n"]), (len(tokens), 8))
                    status, _, data = server.ask("POST", "/infill", {**gap, "response_fields": ["timings/predicted_n", "content", "x", "x/y", ""]})
                    self.assertEqual(json.loads(data), {"timings/predicted_n": 8, "content": llama})
                    status, headers, data = server.ask("POST", "/infill", {**gap, "stream": True})
                    self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
                    events = [json.loads(block.removeprefix("data: ")) for block in data.decode().split("\n\n")[:-1]]
                    self.assertEqual("".join(e["content"] for e in events), llama)
                    self.assertEqual(sum((e["tokens"] for e in events), []), answer["tokens"])
                    self.assertEqual([e["stop"] for e in events], [False] * (len(events) - 1) + [True])
                    # Other files come before the gap, and a request without an answer leaves them in the cache.
                    more = {**gap, "input_extra": [{"filename": "a.txt", "text": "the software is provided as it is\n" * 9}]}
                    empty = json.loads(server.ask("POST", "/infill", {**more, "n_predict": 0})[2])
                    self.assertEqual((empty["content"], empty["tokens_predicted"]), ("", 0))
                    answer = json.loads(server.ask("POST", "/infill", more)[2])
                    self.assertEqual(answer["tokens_evaluated"], empty["tokens_evaluated"])
                    self.assertGreater(answer["timings"]["cache_n"], 60, answer)
                    both = json.loads(server.ask("POST", "/completion", {"prompt": [tokens, tokens], "n_predict": 8, "top_k": 1, "samplers": "k"})[2])
                    self.assertEqual([(a["index"], a["content"]) for a in both], [(0, llama), (1, llama)])
                    if text:
                        self.assertEqual(server.complete(plain(text), suffix=suffix, **fields)["choices"], expected["choices"])
                self.assertEqual(server.complete("a", suffix="", **fields)["choices"], server.complete("a", **fields)["choices"])
                self.assertEqual(server.stop(), 0)
        server = Server(model=MODEL)
        status, _, data = server.ask("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"})
        self.assertEqual((status, "fill in the middle" in json.loads(data)["error"]["message"]), (501, True))
        self.assertEqual(server.stop(), 0)

    def test_recurrent_models(self):
        try:
            import numpy  # noqa: F401  what writes the models needs it
        except ImportError:
            self.skipTest("no NumPy")
        with tempfile.TemporaryDirectory() as folder:
            for name in ("lfm2", "qwen35", "mamba", "falcon-h1"):
                path = os.path.join(folder, name + ".gguf")
                subprocess.run([sys.executable, "tests/oracle/random_transformer.py", path, "--arch", name, "--vocab", "320",
                                "--context", "256", "--texts"], check=True)
                server = Server("--sequences", "3", model="m=" + path)
                alone = [server.complete(p, max_tokens=8)["choices"][0]["text"] for p in PROMPTS]
                self.assertEqual(len(set(alone)), len(alone))
                together = [None] * len(PROMPTS)

                def client(i):
                    together[i] = server.complete(PROMPTS[i], max_tokens=8)
                threads = [threading.Thread(target=client, args=(i,)) for i in range(len(PROMPTS))]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                self.assertEqual([a["choices"][0]["text"] for a in together], alone)
                # A state never goes back: nothing of a prompt is kept for the next.
                self.assertEqual({a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in together}, {0})
                events = server.events("/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0})
                self.assertEqual("".join(e["choices"][0]["text"] for e in events), alone[0])
                self.assertEqual(server.stop(), 0)

    def test_what_stands_behind_pooled_states(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("no NumPy")
        sys.path.insert(0, "tests/oracle")
        import gguf_numpy
        documents = ["hi", "it is a bear", "The giant panda (Ailuropoda melanoleuca) is a bear species endemic to China.", "", "panda panda"]
        with tempfile.TemporaryDirectory() as folder:
            def serve(name, *options):
                path = os.path.join(folder, name + ".gguf")
                subprocess.run([sys.executable, "tests/oracle/random_transformer.py", path, "--vocab", "300", "--context", "512", "--texts", *options], check=True)
                return Server(model="m=" + path), path
            # The scores of llama-server (libllama 0.7.0, --reranking) with this file; one text is longer than a piece of a prompt.
            llama = [-0.1902, -0.1991, -0.1773, -0.1934, -0.2246]
            server, _ = serve("bert", "--arch", "bert", "--seed", "1", "--tensor", "cls")
            query = {"query": "what is a panda?", "documents": documents}
            status, _, data = server.ask("POST", "/v1/rerank", query)
            self.assertEqual(status, 200, data)
            got = json.loads(data)
            self.assertEqual([r["index"] for r in got["results"]], [2, 0, 3, 1, 4])
            for r in got["results"]:
                self.assertAlmostEqual(r["relevance_score"], llama[r["index"]], delta=1e-3)
            self.assertEqual(got["usage"], {"prompt_tokens": 273, "total_tokens": 273})
            for path in ("/rerank", "/v1/reranking", "/reranking"):
                two = json.loads(server.ask("POST", path, {**query, "documents": [{"text": d} for d in documents], "top_n": 2, "return_documents": True})[2])
                self.assertEqual(two["results"], [{**r, "document": {"text": documents[r["index"]]}} for r in got["results"][:2]])
            # The form of Text Embeddings Inference: a list alone.
            listed = json.loads(server.ask("POST", "/rerank", {"query": query["query"], "texts": documents})[2])
            self.assertEqual(listed, [{"index": r["index"], "score": r["relevance_score"]} for r in got["results"]])
            for wrong, param in (({"query": "a"}, "documents"), ({"documents": ["a"]}, "query"), ({**query, "documents": []}, "documents"),
                                 ({**query, "documents": [1]}, "documents"), ({**query, "top_n": 0}, "top_n"), ({**query, "x": 1}, "x")):
                status, _, data = server.ask("POST", "/v1/rerank", wrong)
                self.assertEqual((status, json.loads(data)["error"]["param"]), (400, param))
            self.assertIn("/v1/rerank", json.loads(server.ask("POST", "/v1/embeddings", {"input": "a"})[2])["error"]["message"])
            self.assertEqual(server.stop(), 0)
            # ModernBERT's head: the mean of all tokens, and a norm. Scores of llama-server, too.
            llama = [0.3628, 0.4558, 0.1648, 0.4713, 0.3945]
            server, _ = serve("modern", "--arch", "modern-bert", "--seed", "2", "--tensor", "clsnorm")
            for r in json.loads(server.ask("POST", "/v1/rerank", query)[2])["results"]:
                self.assertAlmostEqual(r["relevance_score"], llama[r["index"]], delta=1e-3)
            self.assertEqual(server.stop(), 0)
            # A language model that says yes or no, by the file's own prompt.
            server, _ = serve("qwen3", "--arch", "qwen3", "--tensor", "yesno")
            scores = [r["relevance_score"] for r in json.loads(server.ask("POST", "/v1/rerank", query)[2])["results"]]
            self.assertEqual(scores, sorted(scores, reverse=True))
            self.assertTrue(all(0 < s < 1 for s in scores) and len(set(scores)) == 5, scores)
            self.assertEqual(server.stop(), 0)
            # Dense layers are linear: theirs of the vectors of the same weights without them.
            vectors = []
            for tensors in (["--key", "pooling_type=1"], ["--tensor", "dense2"]):
                server, path = serve("gemma", "--arch", "gemma-embedding", *tensors)
                vectors.append(np.array([d["embedding"] for d in json.loads(server.ask("POST", "/v1/embeddings", {"input": documents[:3]})[2])["data"]]))
                self.assertEqual(server.ask("POST", "/v1/rerank", query)[0], 400)
                self.assertEqual(server.stop(), 0)
            file = gguf_numpy.GGUF(path)
            expected = vectors[0] @ file.get("dense_2.weight").T @ file.get("dense_3.weight").T
            np.testing.assert_allclose(vectors[1], expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)

    def test_a_folder_of_hugging_face_ranks(self):
        """The scores are transformers' own (5.12.1, BertForSequenceClassification) of this folder; the second text is of tokens of the second kind."""
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("no NumPy")
        documents = ["hi", "it is a bear", "The giant panda (Ailuropoda melanoleuca) is a bear species endemic to China.", "panda panda"]
        scores = [-1.568190, -1.733746, -1.128238, -1.476414]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "tests/oracle/hugging_face_folder.py", "--random", folder,
                            "bert-rank --tensor cls --vocab 64 --seed 3 --context 512"], check=True)
            with open(f"{folder}/0/tokenizer.json", "w") as f:
                json.dump(word_tokenizer(), f)
            server = Server(model=f"m={folder}/0")
            status, _, data = server.ask("POST", "/v1/rerank", {"query": "what is a panda?", "documents": documents})
            self.assertEqual(status, 200, data)
            got = {r["index"]: r["relevance_score"] for r in json.loads(data)["results"]}
            for i, want in enumerate(scores):
                self.assertAlmostEqual(got[i], want, delta=1e-5)
            self.assertEqual(server.stop(), 0)

    def test_prompts_of_a_folder(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("no NumPy")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "tests/oracle/hugging_face_folder.py", "--random", folder, "bert --vocab 64"], check=True)
            types = "sentence_transformers.models."
            for name, value in (("tokenizer.json", word_tokenizer()), ("1_Pooling/config.json", {"pooling_mode": "mean"}),
                                ("modules.json", [{"path": "", "type": types + "Transformer"}, {"path": "1_Pooling", "type": types + "Pooling"}]),
                                ("config_sentence_transformers.json", {"prompts": {"query": "what is ", "text": "it is "}, "default_prompt_name": "text"})):
                os.makedirs(os.path.dirname(f"{folder}/0/{name}"), exist_ok=True)
                with open(f"{folder}/0/{name}", "w") as f:
                    json.dump(value, f)
            server = Server(model=f"m={folder}/0")

            def vector(text, **fields):
                status, _, data = server.ask("POST", "/v1/embeddings", {"input": text, **fields})
                self.assertEqual(status, 200, data)
                return json.loads(data)["data"][0]["embedding"]
            self.assertEqual(vector("a bear"), vector("it is a bear", prompt_name=""))
            self.assertEqual(vector("a bear", prompt_name="query"), vector("what is a bear", prompt_name=""))
            self.assertNotEqual(vector("a bear"), vector("a bear", prompt_name=""))
            self.assertEqual(vector([4, 5]), vector([[4, 5]]))
            for fields, message in (({"input": "a", "prompt_name": "title"}, '"query", "text"'), ({"input": [4], "prompt_name": "text"}, "tokens"),
                                    ({"input": "a", "prompt_name": 1}, "string")):
                status, _, data = server.ask("POST", "/v1/embeddings", fields)
                self.assertEqual((status, json.loads(data)["error"]["param"]), (400, "prompt_name"), data)
                self.assertIn(message, json.loads(data)["error"]["message"])
            self.assertEqual(server.stop(), 0)

    def test_reasoning_is_an_item_of_its_own(self):
        with tempfile.NamedTemporaryFile("w") as template:
            template.write("{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}<think>")
            template.flush()
            server = Server("--chat-template", template.name)
        chat = {"messages": [{"role": "user", "content": PROMPTS[0]}], "temperature": 0, "max_tokens": TOKENS}
        message = json.loads(server.ask("POST", "/v1/chat/completions", chat)[2])["choices"][0]["message"]
        whole = json.loads(server.ask("POST", "/v1/responses", {"input": PROMPTS[0], "temperature": 0, "max_output_tokens": TOKENS})[2])
        self.assertEqual([(i["type"], i["content"], i["summary"]) for i in whole["output"]],
                         [("reasoning", [{"type": "reasoning_text", "text": message["reasoning_content"]}], [])])
        self.assertEqual(whole["usage"]["output_tokens_details"]["reasoning_tokens"], TOKENS)
        # It goes back as what the assistant thought: the same prompt as a chat's.
        body = {"input": [{"role": "user", "content": "a"}, *whole["output"], {"role": "assistant", "content": "b"}], "max_output_tokens": 1}
        chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",
                                                               "reasoning_content": message["reasoning_content"]}], "max_tokens": 1}
        self.assertEqual(json.loads(server.ask("POST", "/v1/responses", body)[2])["usage"]["input_tokens"],
                         json.loads(server.ask("POST", "/v1/chat/completions", chat)[2])["usage"]["prompt_tokens"])
        self.assertEqual(server.stop(), 0)

    def test_an_answer_may_be_begun(self):
        marked = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>THINK{% endif %}"
        user, begun = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b<s>"}
        for think in ("", "<think>\n"):
            with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
                template.write(marked.replace("THINK", think) + ("{# </think> #}" if think else ""))
                template.flush()
                server = Server("--chat-template", template.name)

            def rendered(*messages, **fields):
                status, _, data = server.ask("POST", "/apply-template", {"messages": messages, **fields})
                return json.loads(data)["prompt"] if status == 200 else (status, json.loads(data)["error"]["param"])
            self.assertEqual(rendered(user), "<user>a</><assistant>" + think)
            self.assertEqual(rendered(user, add_generation_prompt=False), "<user>a</>")
            ended = "</think>\n\n" if think else ""
            self.assertEqual(rendered(user, begun), "<user>a</><assistant>" + think + ended + "b<s>")
            self.assertEqual(rendered(user, begun, continue_final_message=False), "<user>a</><assistant>b<s></><assistant>" + think)
            self.assertEqual(rendered(user, continue_final_message=True), (400, "continue_final_message"))
            if think:
                self.assertEqual(rendered(user, {**begun, "reasoning_content": "hm"}), "<user>a</><assistant><think>\nhm\n</think>\n\nb<s>")
            chat = {"messages": [user, begun], "max_tokens": 6, "temperature": 0}
            message = json.loads(server.ask("POST", "/v1/chat/completions", chat)[2])
            # What was begun is text, control tokens in it too.
            self.assertEqual(message["usage"]["prompt_tokens"], 1 + len("<user>a</><assistant>" + think + ended + "b<s>"))
            self.assertNotIn("reasoning_content", message["choices"][0]["message"])
            # Reasoning as it was written, or in a place of its own.
            chat = {"messages": [user], "max_tokens": 6, "temperature": 0}
            raw, taken = (json.loads(server.ask("POST", "/v1/chat/completions", {**chat, **f})[2])["choices"][0]["message"] for f in ({"reasoning_format": "none"}, {}))
            self.assertEqual(("reasoning_content" in raw, "reasoning_content" in taken), (False, bool(think)))
            self.assertTrue(raw["content"])
            self.assertEqual(server.stop(), 0)

    def test_guesses_change_no_token(self):
        prompt = "Permission is hereby granted, free of charge. Permission is hereby granted, free"
        texts = []
        # The model itself guesses best.
        for options in ((), ("--draft-tokens", "3"), ("--draft-model", MODEL)):
            server = Server("--sequences", "4", *options)
            texts.append([server.complete(p, max_tokens=100, temperature=t, seed=5, logprobs=1)["choices"]
                          for p in (prompt, PROMPTS[3]) for t in (0, 0.7)])
            accepted = server.metric("bellmetal:spec_decode_num_accepted_tokens_total")
            steps = server.metric("bellmetal:engine_steps_total")
            self.assertEqual(server.stop(), 0)
            self.assertEqual(texts[0], texts[-1])
            self.assertEqual(accepted > 0 and steps < 400, bool(options), (accepted, steps))

    def test_roles_and_contents_that_templates_do_not_know(self):
        call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

        def talk(role="system", **answer):
            return {"messages": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "hi"},
                                 {"role": "assistant", "tool_calls": [call], **answer},
                                 {"role": "tool", "tool_call_id": "a", "content": "7"}], "temperature": 0, "max_tokens": 2}
        joins = ("{% for m in messages %}{% if m.role == 'system' %}S{% endif %}{% if m.role in ('system', 'user', 'assistant', 'tool') %}"
                 "{{ CONTENT }}{% endif %}{% endfor %}")
        templates = {
            "joins": joins.replace("CONTENT", "'<' + m['content'] + '>'"),  # null cannot be joined
            "writes": joins.replace("CONTENT", "m.content"),                # null is written "None"
            "asks": joins.replace("CONTENT", "'nothing' if m.content is none else m.content"),
            "knows": joins.replace("CONTENT", "m.content") + "{% if messages[0].role == 'developer' %}D{% endif %}"}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in templates.items():
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                server = Server("--chat-template", path)

                def count(body):
                    status, _, data = server.ask("POST", "/v1/chat/completions", body)
                    self.assertEqual(status, 200, (name, data))
                    return json.loads(data)["usage"]["prompt_tokens"]
                empty = count(talk(content=""))
                # What the server itself answers beside calls.
                self.assertEqual(count(talk(content=None)), empty + (len("nothing") if name == "asks" else 0), name)
                self.assertEqual(count(talk()), count(talk(content=None)), name)
                # A developer's words are never lost where the template has no such role.
                developer = count(talk(role="developer", content=""))
                self.assertEqual(developer, empty - len("SBe brief.") + len("D") if name == "knows" else empty, name)
                self.assertEqual(server.stop(), 0)

    def test_a_full_queue_and_deadlines(self):
        server = Server("--sequences", "1", "--queue", "1", "--ctx", "512")
        statuses, headers = [], []

        def client():
            status, head, _ = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 500})
            statuses.append(status)
            headers.append(head)
        threads = [threading.Thread(target=client) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertIn(429, statuses)
        self.assertIn(200, statuses)
        self.assertEqual(headers[statuses.index(429)]["Retry-After"], "1")
        status, _, data = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 500, "timeout": 0.001})
        self.assertEqual((status, json.loads(data)["error"]["code"]), (408, "timeout"))
        self.assertEqual(server.stop(), 0)

    def test_a_hangup_loads_the_models_anew(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            shutil.copy(MODEL, path)
            server = Server("--sequences", "2", model="m=" + path)
            expected = server.complete(PROMPTS[0])["choices"][0]["text"]
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": PROMPTS[0], "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}),
                {"Content-Type": "application/json"})
            answer = connection.getresponse()
            self.assertTrue(answer.readline().startswith(b"data: "))
            server.process.send_signal(signal.SIGHUP)
            self.assertEqual(server.event("reloaded")["model"], "m")
            self.assertEqual(server.complete(PROMPTS[0])["choices"][0]["text"], expected)
            self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))  # by the model that has begun it
            counted = 'bellmetal:request_success_total{model_name="m",finished_reason="length"}'
            self.assertEqual(server.metrics()[counted], 3)
            # A file that cannot be loaded changes nothing.
            with open(path + ".new", "wb") as f:
                f.write(b"GGUF, but not really")
            os.replace(path + ".new", path)
            server.process.send_signal(signal.SIGHUP)
            self.assertTrue(server.event("reload_failed")["reason"])
            self.assertEqual(server.complete(PROMPTS[0])["choices"][0]["text"], expected)
            self.assertEqual(server.ask("GET", "/readyz")[0], 200)
            server.stop()

    def test_a_file_that_was_written_over_is_not_loaded_from_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            shutil.copy(MODEL, path)
            server = Server("--sequences", "1", "--idle-unload", "1", model="m=" + path)
            unloaded = 'bellmetal:model_unloaded{model_name="m"}'
            expected = server.complete(PROMPTS[0])["choices"][0]["text"]
            # Another file in its place: the one that is mapped stays what it was.
            shutil.copy(MODEL, path + ".new")
            os.replace(path + ".new", path)
            self.assertEqual(server.event("model_changed")["path"], path)
            until(lambda: server.metrics()[unloaded] == 1)
            self.assertEqual(server.complete(PROMPTS[0])["choices"][0]["text"], expected)
            server.process.send_signal(signal.SIGHUP)
            server.event("reloaded")
            until(lambda: server.metrics()[unloaded] == 1)
            with open(path, "r+b") as file:
                file.write(b"GGUF")
            status, _, data = server.ask("POST", "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 4})
            self.assertEqual(status, 500)
            self.assertIn("written over", json.loads(data)["error"]["message"])
            server.process.send_signal(signal.SIGHUP)
            until(lambda: sum('"reloaded"' in line for line in server.lines) == 2)
            self.assertEqual(server.complete(PROMPTS[0])["choices"][0]["text"], expected)
            self.assertEqual(server.stop(), 0)

    def test_an_idle_model_is_unloaded_and_comes_back(self):
        server = Server("--idle-unload", "1")
        unloaded = 'bellmetal:model_unloaded{model_name="licence"}'
        texts = []
        for _ in range(2):
            texts.append(server.complete(PROMPTS[1])["choices"][0]["text"])
            end = time.monotonic() + seconds(30)
            while server.metrics()[unloaded] != 1 and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(server.metrics()[unloaded], 1)
            self.assertEqual(server.ask("GET", "/readyz")[0], 200)
        self.assertEqual(texts[0], texts[1])
        server.stop()

    def test_draining_finishes_what_runs(self):
        server = Server()
        got = []
        client = threading.Thread(target=lambda: got.append(server.complete("a", max_tokens=400)))
        client.start()
        until(lambda: server.metric("bellmetal:num_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        server.event("stopping")
        try:
            status, _, data = server.ask("GET", "/readyz")
            self.assertEqual(status, 503)
            self.assertIn(b"stop", data)
        except OSError:
            pass  # it has ended already
        client.join()
        self.assertEqual(got[0]["usage"]["completion_tokens"], 400)
        self.assertEqual(server.wait(), 0)

    def test_draining_is_bounded_and_a_second_signal_ends_it(self):
        for second, code in ((False, 0), (True, 130)):
            server = Server("--drain-seconds", "60" if second else "0", "--sequences", "1")
            status = []

            def client(server=server, status=status):
                try:
                    status.append(server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 500, "n": 16})[0])
                except (OSError, http.client.HTTPException):
                    status.append(None)
            thread = threading.Thread(target=client)
            thread.start()
            until(lambda server=server: server.metric("bellmetal:num_requests_running") == 1)
            server.process.send_signal(signal.SIGTERM)
            server.event("stopping")
            if second:
                server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(), code)
            thread.join()
            self.assertEqual(status, [None] if second else [503])

    def test_bench_measures_this_server_and_others(self):
        with tempfile.TemporaryDirectory() as folder:
            # A peer with llama-server's options that is this server all the same.
            peer = os.path.join(folder, "peer")
            with open(peer, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec {os.path.abspath(BELLMETAL)} serve "$2" --listen "127.0.0.1:$6" --sequences "$8"\n')
            os.chmod(peer, 0o755)
            out = subprocess.run([BELLMETAL, "bench", "serve", MODEL, "--peer", f"peer={peer}", "--clients", "1,3", "--rounds", "1",
                                  "--turns", "1", "--prompt-tokens", "20", "--tokens", "8", "--device", "CPU", "--json"],
                                 stdout=subprocess.PIPE, check=True, timeout=seconds(120))
        result = json.loads(out.stdout)
        self.assertEqual([row["clients"] for row in result["rows"]], [1, 3])
        for name in ("bellmetal", "peer"):
            self.assertGreater(result["start_to_ready_ms"][name], 0)
            for row in result["rows"]:
                self.assertGreaterEqual(row[name]["gap_ms_p99"], row[name]["gap_ms_p50"])
                self.assertGreater(row[name]["tokens_per_second"], 0)
                self.assertGreater(row[name]["first_token_ms_p50"], 0)

    def test_the_service_manager(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "notify")
            told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            told.bind(path)
            told.settimeout(seconds(60))
            listening = socket.create_server(("127.0.0.1", 0))
            port = listening.getsockname()[1]
            # What sd_listen_fds(3) passes: descriptor 3, and the number of the process that is meant.
            script = f'exec 3<&{listening.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"'
            process = subprocess.Popen(["/bin/bash", "-c", script, BELLMETAL, "serve", MODEL, "--listen", "127.0.0.1:1"],
                                       pass_fds=[listening.fileno()], env={**os.environ, "NOTIFY_SOCKET": path},
                                       stderr=subprocess.DEVNULL)
            # Connections wait in the socket from the start.
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds(60))
            connection.request("GET", "/livez")
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()
            self.assertTrue(told.recv(1000).startswith(b"READY=1\n"))
            process.send_signal(signal.SIGTERM)
            self.assertTrue(told.recv(1000).startswith(b"STOPPING=1\n"))
            self.assertEqual(process.wait(seconds(30)), 0)
            told.close()
            listening.close()

    def test_slow_readers_keep_nobody(self):
        server = Server("--sequences", "4", "--idle-seconds", "2")
        slow = []
        for _ in range(8):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            s.connect(("127.0.0.1", server.port))
            body = json.dumps({"prompt": "a", "max_tokens": 400, "stream": True, "logprobs": 20}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
                      + str(len(body)).encode() + b"\r\n\r\n" + body)
            slow.append(s)
        # A half request, too.
        half = socket.create_connection(("127.0.0.1", server.port))
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
        self.assertEqual(server.complete(PROMPTS[0])["usage"]["completion_tokens"], TOKENS)
        until(lambda: server.metric("bellmetal:num_requests_running") == 0, 60)
        # All but the one that asks are closed in the end.
        until(lambda: server.metric("bellmetal:http_connections") == 1, 60)
        for s in [*slow, half]:
            s.close()
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    BELLMETAL = sys.argv.pop(1)
    try:
        unittest.main()
    finally:
        for process in RUNNING:
            if process.poll() is None:
                process.kill()
