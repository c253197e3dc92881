#!/usr/bin/env python3
"""`bellmetal chat` and the options of `generate` from outside: pipes, a pseudo-terminal, JSON, grammars.

    chat_test.py PATH_OF_BELLMETAL [PART]
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from limits import seconds

PROGRAM = sys.argv.pop(1)
MODEL = "models/bundled/licence.gguf"
PROMPT = "Permission is hereby granted"
# The bundled model knows no roles; this template goes on where the last turn ended.
TEMPLATE = ("{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant] {% endif %}")


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


class WithTemplate(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = held.name
        self.template = write(self.folder, "chat.jinja", TEMPLATE)

    def run_program(self, *args, text=""):
        return subprocess.run([PROGRAM, *args], input=text.encode(), capture_output=True, timeout=seconds(300))

    def chat(self, *args, text="", template=True):
        extra = ["--chat-template", self.template] if template else []
        return self.run_program("chat", MODEL, *extra, "--temp", "0", *args, text=text)


class Pipe(WithTemplate):
    def test_each_line_is_a_message_and_stdout_has_the_answers_alone(self):
        done = self.chat("-n", "12", text="first\n\nsecond\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = [json.loads(line)["text"] for line in self.chat("-n", "12", "--json", text="first\n\nsecond\n").stdout.splitlines()]
        self.assertEqual(len(answers), 2)
        self.assertEqual(done.stdout.decode(), "".join(a if a.endswith("\n") else a + "\n" for a in answers))
        self.assertEqual(done.stderr.count(b"prefill"), 2)

    def test_only_new_tokens_are_computed(self):
        done = self.chat("-n", "10", "--json", text="one\ntwo\nthree\n")
        turns = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([t["turn"] for t in turns], [1, 2, 3])
        self.assertEqual(turns[0]["cached_tokens"], 0)
        for before, turn in zip(turns, turns[1:]):
            # The last token of an answer is fed with the next message.
            held = before["prompt_tokens"] + len(before["tokens"]) - 1
            self.assertEqual(turn["cached_tokens"], held)
            self.assertEqual(turn["prompt_tokens"], turn["cached_tokens"] + turn["prefilled_tokens"])
            self.assertLess(turn["prefilled_tokens"], 40)
        # What was kept is what a fresh computation would have: the same conversation in one prompt.
        text = "".join(f"[user] {m}\n[assistant] {t['text']}\n" for m, t in zip(("one", "two"), turns)) + "[user] three\n[assistant] "
        fresh = self.run_program("generate", MODEL, "-", "-n", "10", "--json", text=text + "\n")
        self.assertEqual(json.loads(fresh.stdout)["tokens"], turns[2]["tokens"])
        self.assertEqual(json.loads(fresh.stdout)["prompt_tokens"], turns[2]["prompt_tokens"])

    def test_a_template_that_rewrites_the_past_is_computed_anew(self):
        template = write(self.folder, "last.jinja", "{{ messages | length }} {{ messages[-1].content }}:")
        done = self.chat("--chat-template", template, "-n", "4", "--json", text="a\nb\n", template=False)
        turns = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([t["cached_tokens"] for t in turns], [0, 0], done.stderr)
        self.assertEqual(turns[1]["prompt_tokens"], len("3 b:") + 1)

    def test_whole_input_is_one_message(self):
        done = self.chat("-n", "3", "--json", "--whole-input", text="line one\nline two\n")
        turns = done.stdout.splitlines()
        self.assertEqual(len(turns), 1, done)
        self.assertEqual(json.loads(turns[0])["prompt_tokens"], 1 + len("[user] line one\nline two\n[assistant] "))

    def test_the_system_prompt_comes_first(self):
        done = self.chat("-n", "1", "--json", "--system", "Be brief.", text="x\n")
        self.assertEqual(json.loads(done.stdout)["prompt_tokens"], 1 + len("[system] Be brief.\n[user] x\n[assistant] "))

    def test_control_tokens_in_a_message_are_text(self):
        plain = json.loads(self.chat("-n", "1", "--json", text="abcd\n").stdout)["prompt_tokens"]
        spelled = json.loads(self.chat("-n", "1", "--json", text="</s>\n").stdout)["prompt_tokens"]
        self.assertEqual(spelled, plain)  # four characters, four tokens of a byte-level vocabulary

    def test_a_model_without_a_template_is_a_clear_error(self):
        done = self.chat("-n", "1", text="x\n", template=False)
        self.assertEqual(done.returncode, 4, done)
        self.assertIn(b"no chat template", done.stderr)
        self.assertIn(b"--chat-template", done.stderr)
        broken = write(self.folder, "broken.jinja", "{% for %}")
        done = self.chat("--chat-template", broken, text="x\n", template=False)
        self.assertIn(b"broken.jinja", done.stderr)
        self.assertEqual(done.returncode, 4, done)

    def test_a_conversation_beyond_the_context_names_what_fits(self):
        done = self.chat("-n", "4", "--json", text="short\n" + "x" * 600 + "\n")
        first, second = (json.loads(line) for line in done.stdout.splitlines())
        self.assertEqual(first["finish_reason"], "length")
        self.assertEqual(second["error"]["code"], "invalid_argument")
        self.assertRegex(second["error"]["message"], r"has 512: at most \d+ new ones fit")
        self.assertNotEqual(done.returncode, 0)

    def test_the_context_may_be_shorter(self):
        done = self.chat("-c", "64", "-n", "-1", "--json", text="hi\n")
        turn = json.loads(done.stdout)
        self.assertEqual(turn["finish_reason"], "context_full")
        self.assertLessEqual(turn["prompt_tokens"] + len(turn["tokens"]), 65)

    def test_ctrl_c_ends_a_pipe(self):
        child = subprocess.Popen([PROGRAM, "chat", MODEL, "--chat-template", self.template, "-n", "-1", "-l", "2-inf"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdin.write(b"hello\n")
        child.stdin.flush()
        child.stdout.read(3)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=seconds(60))
        self.assertEqual(child.returncode, 130, err)


class Sampling(WithTemplate):
    def generate(self, *args, text="", code=0):
        done = self.run_program("generate", MODEL, *args, "--json", text=text)
        self.assertEqual(done.returncode, code, done)
        return json.loads(done.stdout)

    def test_a_prompt_may_come_from_a_file_or_stdin(self):
        want = self.generate(PROMPT, "-n", "8")["tokens"]
        path = write(self.folder, "prompt.txt", PROMPT + "\n")
        self.assertEqual(self.generate("-f", path, "--n-predict", "8")["tokens"], want)
        self.assertEqual(self.generate("-", "-n", "8", text=PROMPT)["tokens"], want)
        self.assertEqual(self.generate("-f", "-", "-n", "8", text=PROMPT)["tokens"], want)
        done = self.run_program("generate", "-m", MODEL, "-p", PROMPT, "-n", "8", "--temp", "0", "-t", "1", "-c", "128", "--json")
        self.assertEqual(json.loads(done.stdout)["tokens"], want)
        done = self.run_program("generate", "-m", MODEL, PROMPT, "-n", "8", "--json")
        self.assertEqual(json.loads(done.stdout)["tokens"], want)
        done = self.run_program("generate", MODEL, "-f", "/nonexistent/prompt", "--json")
        self.assertEqual(done.returncode, 4, done)
        for args in ([], ["-p", "x"], [MODEL], [MODEL, "a", "-p", "b"]):
            self.assertEqual(self.run_program("generate", *args).returncode, 2, args)

    def test_text_ends_before_a_stop_string(self):
        full = self.generate(PROMPT, "-n", "60")["text"]
        got = self.generate(PROMPT, "-n", "60", "--stop", "charge", "-r", "person")
        self.assertEqual(got["text"], full[:full.index("charge")])
        self.assertEqual(got["finish_reason"], "stop_string")

    def test_samplers_change_what_is_written(self):
        base = self.generate(PROMPT, "-n", "30", "--temp", "1.2", "-s", "3")["text"]
        for args in (["--top-k", "2"], ["--top-p", "0.3"], ["--min-p", "0.5"], ["--typical", "0.2"], ["--repeat-penalty", "3"],
                     ["--mirostat", "1", "--mirostat-ent", "0.5"], ["--mirostat", "2", "--mirostat-ent", "0.5"],
                     ["--frequency-penalty", "5"], ["--presence-penalty", "20"]):
            self.assertNotEqual(self.generate(PROMPT, "-n", "30", "--temp", "1.2", "-s", "3", *args)["text"], base, args)
        first = self.generate(PROMPT, "-n", "1")["tokens"][0]
        self.assertNotEqual(self.generate(PROMPT, "-n", "1", "--logit-bias", f"{first}-inf")["tokens"][0], first)
        self.assertEqual(self.generate(PROMPT, "-n", "1", "-l", "100+1000")["tokens"], [100])
        for bad in ("5", "x+1", "5+", "5*2", "5+-1", "-5+1"):
            self.assertIn("logit bias", self.generate(PROMPT, f"--logit-bias={bad}", code=2)["error"]["message"])

    def test_logprobs_are_those_of_the_tokens(self):
        got = self.generate(PROMPT, "-n", "5", "--logprobs", "3")
        self.assertEqual([p["id"] for p in got["logprobs"]], got["tokens"])
        for p in got["logprobs"]:
            self.assertEqual(len(p["top"]), 3)
            self.assertEqual(p["top"][0]["id"], p["id"])  # temperature 0
            self.assertTrue(p["top"][0]["logprob"] >= p["top"][1]["logprob"] >= p["top"][2]["logprob"])
            self.assertLessEqual(p["logprob"], 0)

    def test_a_grammar_binds_the_text(self):
        for seed in range(5):
            args = ("-n", "80", "--temp", "1.5", "-s", str(seed))
            got = self.generate(PROMPT, *args, "--grammar", 'root ::= " " [a-z]{3,6} ("-" [0-9]{2}){1,3} "!"')
            self.assertRegex(got["text"], r"^ [a-z]{3,6}(-[0-9]{2}){1,3}!$")
            self.assertEqual(got["finish_reason"], "stop")
        path = write(self.folder, "yes.gbnf", 'root ::= "yes" | "no"\n')
        self.assertIn(self.generate(PROMPT, "--grammar-file", path)["text"], ("yes", "no"))
        self.assertIn("left recursion", self.generate(PROMPT, "--grammar", "root ::= root", code=2)["error"]["message"])

    def test_a_json_schema_binds_the_text(self):
        schema = {"type": "object", "required": ["name", "n", "tags"],
                  "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 1, "maximum": 31},
                                 "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}}}
        try:
            import jsonschema
        except ImportError:
            self.skipTest("no python3-jsonschema")
        path = write(self.folder, "schema.json", json.dumps(schema))
        for seed in range(4):
            args = ("-n", "400", "--temp", "1.2", "-s", str(seed))
            got = self.generate(PROMPT, *args, "-j", json.dumps(schema))
            jsonschema.validate(json.loads(got["text"]), schema)
            self.assertEqual(self.generate(PROMPT, *args, "--json-schema-file", path)["text"], got["text"])
        self.assertIn('"not" is not supported', self.generate(PROMPT, "-j", '{"not": {}}', code=3)["error"]["message"])
        self.assertEqual(self.run_program("generate", MODEL, PROMPT, "-j", "{}", "--grammar", "x").returncode, 2)


class Terminal(WithTemplate):
    """On a pseudo-terminal: stdin and stderr are the terminal, stdout is a pipe or the terminal, too."""

    def start(self, *args, stdout=None):
        self.master, terminal = pty.openpty()
        self.child = subprocess.Popen([PROGRAM, "chat", MODEL, "--chat-template", self.template, *args], stdin=terminal, stderr=terminal,
                                      stdout=terminal if stdout is None else stdout, start_new_session=True, preexec_fn=take_terminal,
                                      env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": self.folder})
        os.close(terminal)
        self.seen = ""
        self.addCleanup(self.end)
        self.wait_for("> ")

    def end(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.master)

    def wait_for(self, text, after=0):
        """Reads until the terminal shows `text`; gives what came before it and forgets both."""
        deadline = time.monotonic() + seconds(120)
        while (at := plain(self.seen).find(text, after)) < 0:
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                self.fail(f"no {text!r} in {self.seen!r}")
            try:
                chunk = os.read(self.master, 65536)
            except OSError:
                chunk = b""
            if not chunk:
                self.fail(f"ended without {text!r}: {self.seen!r}")
            self.seen += chunk.decode(errors="replace")
        shown = plain(self.seen)
        self.seen = shown[at + len(text):]
        return shown[:at]

    def type(self, text):
        os.write(self.master, text.encode())

    def leave(self, code=0):
        deadline = time.monotonic() + seconds(60)
        while self.child.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    os.read(self.master, 65536)
                except OSError:
                    pass
        self.assertEqual(self.child.poll(), code)

    def test_a_message_is_answered_and_ctrl_d_leaves(self):
        self.start("-n", "8", "--temp", "0")
        self.type("hello\r")
        self.wait_for("prefill")
        self.wait_for("new of")
        self.wait_for("> ")
        self.type("\x04")
        self.leave(0)

    def test_answers_go_to_stdout_alone(self):
        read, write_end = os.pipe()
        self.start("-n", "6", "--temp", "0", "--json", stdout=write_end)
        os.close(write_end)
        self.type("hello\r")
        self.wait_for("prefill")
        self.wait_for("> ")
        self.type("\x04")
        self.leave(0)
        with os.fdopen(read) as f:
            self.assertEqual(len(json.loads(f.read())["tokens"]), 6)

    def test_history_and_editing(self):
        read, write_end = os.pipe()
        self.start("-n", "1", "--temp", "0", "--json", stdout=write_end)
        os.close(write_end)
        self.type("abcd\r")
        self.wait_for("prefill")
        self.wait_for("> ")
        self.type("\x1b[A")  # the last message again
        self.wait_for("abcd")
        self.type("e\x01X\r")  # a letter more at its end, one at its beginning
        self.wait_for("prefill")
        self.wait_for("> ")
        self.type("éx\x7f\x7f\x7fok\r")  # deletes characters, not bytes
        self.wait_for("prefill")
        self.wait_for("> ")
        self.type("/exit\r")
        self.leave(0)
        with os.fdopen(read) as f:
            turns = [json.loads(line) for line in f.read().splitlines()]
        sizes = [t["prompt_tokens"] for t in turns]
        frame = len("[user] \n[assistant] ")
        self.assertEqual(sizes[0], 1 + frame + len("abcd"))
        rest = [now - before for before, now in zip(sizes, sizes[1:])]
        answers = [len(t["tokens"]) for t in turns]
        self.assertEqual(rest, [answers[0] + 1 + frame + len("XabcdE"), answers[1] + 1 + frame + len("ok")])

    def test_messages_of_several_lines(self):
        read, write_end = os.pipe()
        self.start("-n", "1", "--temp", "0", "--json", stdout=write_end)
        os.close(write_end)
        self.type('"""one\r')
        self.wait_for(". ")
        self.type('two"""\r')
        self.wait_for("prefill")
        self.wait_for("> ")
        self.type("/clear\r")
        self.wait_for("anew")
        self.wait_for("> ")
        self.type("one\\\r")
        self.wait_for(". ")
        self.type("two\r")
        self.wait_for("prefill")
        self.wait_for("> ")
        self.type("\x04")
        self.leave(0)
        with os.fdopen(read) as f:
            turns = [json.loads(line) for line in f.read().splitlines()]
        self.assertEqual([t["prompt_tokens"] for t in turns], [1 + len("[user] one\ntwo\n[assistant] ")] * 2)
        self.assertEqual(turns[0]["tokens"], turns[1]["tokens"])

    def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(self):
        self.start("-n", "-1", "--temp", "1", "-l", "2-inf", "--seed", "1", "--top-k", "0", "--min-p", "0", "--top-p", "1")
        self.type("hello\r")
        self.wait_for("hello\r\n")
        self.wait_for("e")  # the answer has begun
        self.type("\x03")
        self.wait_for("stopped; Ctrl-C again leaves")
        self.wait_for("> ")
        self.type("x\r")
        self.wait_for("x\r\n")
        self.wait_for("e")
        self.type("\x03")
        self.wait_for("stopped")
        self.wait_for("> ")
        self.type("\x03")
        self.leave(130)

    def test_ctrl_c_at_the_prompt_drops_the_line_and_a_second_one_leaves(self):
        self.start("-n", "2", "--temp", "0")
        self.type("never sent")
        self.wait_for("never sent")
        self.type("\x03")
        self.wait_for("Ctrl-C again leaves")
        self.wait_for("> ")
        self.type("sent\r")
        self.wait_for("prefill")
        self.wait_for("> ")
        self.type("\x03")
        self.wait_for("Ctrl-C again leaves")
        self.wait_for("> ")
        self.type("\x03")
        self.leave(130)

    def test_an_error_does_not_end_the_conversation(self):
        self.start("-n", "2", "--temp", "0", "-c", "64")
        self.type("x" * 80 + "\r")
        self.wait_for("at most 63 new ones fit")
        self.wait_for("> ")
        self.type("x\r")
        self.wait_for("prefill")
        self.wait_for("> ")
        self.type("\x04")
        self.leave(0)


def plain(text):
    """Without the terminal's sequences for colors and the cursor."""
    return re.sub(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>]|\([A-Z0-9])", "", text)


def take_terminal():
    """The terminal becomes that of the session, so that Ctrl-C typed there is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
