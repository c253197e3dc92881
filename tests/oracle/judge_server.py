#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama-server as the judge of what its clients send and read: the same requests to both servers, their answers side by side.

    judge_server.py BUILD CHROOT [PATTERN]

CHROOT: a folder with Debian sid's llama.cpp; its program runs by its own loader, nothing is entered. The model is the bundled one. Prints a line for each
request; exits with 1 where a text, a token, a probability (by more than 0.01) or a member of an answer is missing or another.
"""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "../../models/bundled/licence.gguf")
PORTS = {"ours": 18982, "theirs": 18981}
PROMPTS = ["Permission is hereby granted, free of charge, to any person", "This program is free software; you can", "the software the software the soft"]
CHAT = [{"role": "user", "content": "Permission is"}]
TEMPLATE = """{%- for m in messages -%}{{ m['role'] }}: {{ m['content'] }}
{% endfor -%}{%- if add_generation_prompt -%}assistant: {% endif -%}"""
GREEDY = {"top_k": 1, "samplers": ["top_k"]}
# What SillyTavern sends to llama-server; its doubles under the names of other servers too.
SILLY = {
    "max_new_tokens": 12, "max_tokens": 12, "n_predict": 12, "num_predict": 12, "num_ctx": 512, "truncation_length": 512, "temperature": 0, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
    "typical_p": 1, "typical": 1, "repetition_penalty": 1.1, "rep_pen": 1.1, "repeat_penalty": 1.1, "repeat_last_n": 0, "rep_pen_range": 0, "repetition_penalty_range": 0,
    "frequency_penalty": 0, "presence_penalty": 0, "skew": 0, "min_tokens": 0, "add_bos_token": True, "smoothing_factor": 0, "smoothing_curve": 1, "dry_allowed_length": 2,
    "dry_multiplier": 0, "dry_base": 1.75, "dry_sequence_breakers": ["\n", ":", "\"", "*"], "dry_penalty_last_n": 0, "max_tokens_second": 0,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"], "stopping_strings": ["\nYou:"], "stop": ["\nYou:"],
    "ban_eos_token": False, "ignore_eos": False, "skip_special_tokens": True, "include_reasoning": True, "top_a": 0, "tfs": 1, "mirostat_mode": 0, "mirostat": 0, "mirostat_tau": 5,
    "mirostat_eta": 0.1, "custom_token_bans": "", "banned_strings": [], "api_type": "llamacpp", "api_server": "http://127.0.0.1:8080", "xtc_threshold": 0.1, "xtc_probability": 0,
    "nsigma": 0, "top_n_sigma": 0, "min_keep": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9, "n": 1, "guidance_scale": 1, "negative_prompt": "", "grammar": "", "rep_pen_slope": 1,
    "logit_bias": [[5, False], [72, -1.5]], "cache_prompt": True, "n_probs": 10, "logprobs": 10}
# Distributions: of the first token, after these samplers.
SAMPLERS = {
    "none": {}, "plain": {"samplers": []}, "top_k": {"top_k": 5}, "top_p": {"top_p": 0.5, "top_k": 0}, "min_p": {"min_p": 0.2, "top_k": 0, "top_p": 1},
    "typical": {"typical_p": 0.5, "top_k": 0, "top_p": 1, "min_p": 0}, "warm": {"temperature": 2.0}, "hot": {"temperature": 5.0, "top_p": 0.8, "min_p": 0.01}, "cold": {"temperature": 0.2},
    "dynamic": {"temperature": 1.0, "dynatemp_range": 0.7, "dynatemp_exponent": 1.5}, "sigma": {"top_n_sigma": 1.5}, "xtc": {"xtc_probability": 1, "xtc_threshold": 0.05},
    "penalties": {"repeat_penalty": 1.5, "frequency_penalty": 0.3, "presence_penalty": 0.4}, "window": {"repeat_penalty": 1.5, "repeat_last_n": 4},
    "dry": {"dry_multiplier": 1.0, "dry_allowed_length": 1}, "mirostat 1": {"mirostat": 1, "mirostat_tau": 1.0}, "mirostat 2": {"mirostat": 2, "mirostat_tau": 0.8, "temperature": 1.5},
    "bias": {"logit_bias": [[83, 3.5], ["the", 1.5], [259, False]]}, "named bias": {"logit_bias": {"th": 2, "83": -1}}, "greedy": {"temperature": 0}, "order": {"samplers": "tkp", "temperature": 1.7, "top_k": 8, "top_p": 0.7},
    "min_keep": {"top_p": 0.1, "min_keep": 3}, "min_keep of min_p": {"min_p": 0.9, "min_keep": 4, "samplers": ["min_p"]},
    "min_keep of typical": {"typical_p": 0.1, "min_keep": 3, "samplers": ["typ_p"]}, "min_keep of xtc": {"xtc_probability": 1, "xtc_threshold": 0.01, "min_keep": 200, "samplers": "x"}}
# Greedy answers: path, fields.
REQUESTS = {
    "silly": ("/completion", {"prompt": PROMPTS[0], **SILLY}),
    "continue": ("/completion", {"prompt": PROMPTS[1], "n_predict": 8, "frequency_penalty": 0, "presence_penalty": 0, "min_p": 0, "mirostat": 0, "stop": ["\n\n"], "top_k": 1, "top_p": 1, "temperature": 0}),
    "promptfoo": ("/completion", {"prompt": PROMPTS[1], "n_predict": 8, "temperature": 0, "top_k": 40, "top_p": 0.95, "n_keep": 0, "stop": None, "repeat_penalty": 1.1, "repeat_last_n": 64, "penalize_nl": True,
                                  "presence_penalty": 0, "frequency_penalty": 0, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "seed": -1, "ignore_eos": False, "logit_bias": None}),
    "tokens": ("/completion", {"prompt": [1, 83, 104, 117], "n_predict": 8, **GREEDY, "return_tokens": True}),
    "mixed": ("/completion", {"prompt": [1, "Permission", 259], "n_predict": 8, **GREEDY}),
    "text first": ("/completion", {"prompt": ["Permission", 259, " is"], "n_predict": 8, **GREEDY}),
    "object": ("/completion", {"prompt": {"prompt_string": "Permission"}, "n_predict": 8, **GREEDY}),
    "several": ("/completion", {"prompt": ["Permission", [1, 83], {"prompt_string": "The"}], "n_predict": 8, **GREEDY}),
    "empty": ("/completion", {"prompt": "", "n_predict": 8, **GREEDY}),
    "control": ("/completion", {"prompt": "<s>Permission</s>The", "n_predict": 8, **GREEDY}),
    "control in completions": ("/v1/completions", {"prompt": "Permission</s>The", "max_tokens": 8, "temperature": 0}),
    "grammar": ("/completion", {"prompt": PROMPTS[0], "n_predict": 8, "grammar": "root ::= \"b\" [a-d]+", "temperature": 0}),
    "stop": ("/completion", {"prompt": PROMPTS[0], "n_predict": 30, "stop": ["de", "q"], "n_probs": 1, "temperature": 0}),
    "bound": ("/completion", {"prompt": PROMPTS[2], "n_predict": 20, "temperature": 0, "repeat_penalty": 1.4, "repeat_last_n": 10}),
    "dry": ("/completion", {"prompt": PROMPTS[2], "n_predict": 20, "temperature": 0, "dry_multiplier": 2.0, "dry_penalty_last_n": 30}),
    "chat": ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 12, "temperature": 0, "cache_prompt": True, "id_slot": 0, "samplers": ["top_k", "temperature"], "min_keep": 1, "top_k": 7, "dry_multiplier": 0.0,
                                      "xtc_probability": 0.0, "typical_p": 1, "repeat_penalty": 1.0, "repeat_last_n": 64, "mirostat": 0, "n_probs": 3, "timings_per_token": True, "reasoning_format": "auto",
                                      "parse_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False}, "t_max_predict_ms": -1, "n_keep": 0, "lora": [], "dynatemp_range": 0, "dynatemp_exponent": 1}),
    "endless chat": ("/v1/chat/completions", {"messages": CHAT, "max_tokens": -1, "n_predict": 6, "temperature": 0, "stream": False, "return_progress": True}),
    "old path": ("/chat/completions", {"messages": CHAT, "max_tokens": 6, "temperature": 0}),
    "no prompt behind": ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 6, "temperature": 0, "add_generation_prompt": False}),
    "prefilled": ("/v1/chat/completions", {"messages": [*CHAT, {"role": "assistant", "content": "The Licen"}], "max_tokens": 12, "temperature": 0}),
    "prefilled by name": ("/v1/chat/completions", {"messages": [*CHAT, {"role": "assistant", "content": "The Licen"}], "max_tokens": 12, "temperature": 0, "continue_final_message": True, "add_generation_prompt": False}),
    "chat schema": ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 40, "temperature": 0, "response_format": {"type": "json_object", "schema": {"enum": ["one", "two"]}}}),
    "completions": ("/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "cache_prompt": True, "n_probs": 2, "samplers": ["top_k"], "top_k": 1}),
    "messages": ("/v1/messages", {"model": "licence", "max_tokens": 12, "messages": CHAT, "temperature": 0}),
    "messages with a system": ("/v1/messages", {"model": "licence", "max_tokens": 12, "system": [{"type": "text", "text": "The GNU"}], "messages": [{"role": "user", "content": [{"type": "text", "text": "Permission is"}]}], "temperature": 0}),
    "count": ("/v1/messages/count_tokens", {"model": "licence", "messages": CHAT}),
    "responses": ("/v1/responses", {"model": "licence", "max_output_tokens": 8, "input": "Permission is", "temperature": 0}),
    "template": ("/apply-template", {"messages": CHAT}),
    "template, begun": ("/apply-template", {"messages": [*CHAT, {"role": "assistant", "content": "The"}]}),
    "template alone": ("/apply-template", {"messages": CHAT, "add_generation_prompt": False}),
    "tokenize": ("/tokenize", {"content": "Permission é\n"}),
    "tokenize special": ("/tokenize", {"content": "Permission</s>The", "add_special": True}),
    "tokenize literally": ("/tokenize", {"content": "Permission</s>The", "parse_special": False}),
    "pieces": ("/tokenize", {"content": "<s>Permé", "with_pieces": True}),
    "detokenize": ("/detokenize", {"tokens": [1, 83, 104, 117, 112]}),
    "health": ("/health", None), "v1 health": ("/v1/health", None), "props": ("/props", None), "slots": ("/slots", None), "models": ("/v1/models", None), "models of old": ("/models", None), "adapters": ("/lora-adapters", None)}
# Members of their answers that ours need not have, and why.
NOT_OURS = {
    "adaptive_target", "adaptive_decay", "grammar_lazy", "grammar_triggers", "preserved_tokens", "chat_format", "reasoning_format", "reasoning_in_content", "generation_prompt",
    "speculative.types", "backend_sampling",  # of generation_settings: how it works inside
    "media_marker", "ui", "ui_settings", "cors_proxy_enabled", "chat_template_caps", "model_ftype", "ftype",  # of /props: its pages, images
    "id_task", "n_prompt_tokens", "n_prompt_tokens_processed", "n_prompt_tokens_cache", "params", "next_token"}  # of /slots: requests of others
# Members whose values belong to a server or a moment; two of a prompt's end that have another meaning in blocks.
NOT_EQUAL = {
    "id", "created", "model", "timings", "system_fingerprint", "owned_by", "model_alias", "model_path", "build_info", "id_slot", "total_slots", "aliases", "name", "models", "meta", "created_at", "completed_at",
    "prompt_tokens_details", "input_tokens_details", "usage", "cached_tokens", "endpoint_props", "n_ctx", "seed", "generation_settings", "refusal", "logprobs", "completion_probabilities", "count", "tokens_cached",
    "status"}  # of "Responses": OpenAI's is incomplete where max_output_tokens ended it


def servers(build, chroot):
    lib = f"{os.path.abspath(chroot)}/usr/lib/x86_64-linux-gnu"
    loader = [f"{os.path.abspath(chroot)}/lib64/ld-linux-x86-64.so.2", "--library-path", f"{lib}/llama:{lib}/ggml:{lib}"]
    model, template = os.path.abspath(MODEL), "/tmp/judge-server.jinja"
    with open(template, "w", encoding="utf-8") as file:
        file.write(TEMPLATE)
    return {"theirs": ["env", "-C", f"{lib}/ggml/backends0", *loader, f"{chroot}/usr/bin/llama-server", "-m", model, "--port", str(PORTS["theirs"]), "--host", "127.0.0.1", "-np", "2", "-c", "1024",
                       "--slots", "--metrics", "--alias", "licence", "--chat-template-file", template],
            "ours": [f"{build}/bin/bellmetal", "serve", f"licence={model}", "--listen", f"127.0.0.1:{PORTS['ours']}", "--device", "CPU", "--chat-template", template]}


def ask(port, path, fields):
    data = None if fields is None else json.dumps(fields).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def await_ready(port):
    for _ in range(600):
        with contextlib.suppress(OSError):
            if ask(port, "/health", None)[0] == 200:
                return
        time.sleep(0.1)
    sys.exit(f"no server at {port}")


def both(path, fields):
    out = []
    for name in ("ours", "theirs"):
        status, text = ask(PORTS[name], path, fields)
        if status != 200:
            return None, f"{name} {status} {text[:300]}"
        out.append(json.loads(text))
    return out, ""


def differences(ours, theirs, at=""):
    """Members that are missing in ours, and values that are others."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            if key in NOT_OURS:
                continue
            if key not in ours:
                yield f"{at}/{key} is missing"
            elif key not in NOT_EQUAL:
                yield from differences(ours[key], value, f"{at}/{key}")
            elif isinstance(value, dict) and isinstance(ours[key], dict):  # names alone
                yield from (f"{at}/{key}/{k} is missing" for k in value if k not in ours[key] and k not in NOT_OURS)
    elif isinstance(theirs, list) and isinstance(ours, list) and at != "/data/0/tags":
        if len(ours) != len(theirs) and at not in ("",):
            yield f"{at}: {len(ours)} and {len(theirs)}"
        for i, (a, b) in enumerate(zip(ours, theirs)):
            yield from differences(a, b, f"{at}/{i}")
    elif isinstance(theirs, float) and isinstance(ours, (int, float)):
        if abs(theirs - ours) > 1e-6:
            yield f"{at}: {ours} and {theirs}"
    elif ours != theirs:
        yield f"{at}: {ours!r} and {theirs!r}"


def probabilities(answer):
    """[(id, {id: value})] of each token, whatever the form."""
    found = answer.get("completion_probabilities")
    if found is None and "choices" in answer:
        found = (answer["choices"][0].get("logprobs") or {}).get("content")
    return [(t["id"], {o["id"]: o["prob"] if "prob" in o else math.exp(o["logprob"]) for o in t.get("top_probs", t.get("top_logprobs"))}) for t in found or []]


def compare_probabilities(ours, theirs):
    if len(ours) != len(theirs):
        yield f"{len(ours)} and {len(theirs)} tokens with probabilities"
    for i, ((_, a), (_, b)) in enumerate(zip(ours, theirs)):
        worst = max((abs(a.get(k, 0) - b.get(k, 0)) for k in a.keys() | b.keys()), default=0)
        # llama-server tells none of a token that begins a stop text.
        if worst > 0.01 and b:
            yield f"token {i}: {sorted(a.items(), key=lambda p: -p[1])[:4]} and {sorted(b.items(), key=lambda p: -p[1])[:4]}"


def events(port, path, fields):
    status, text = ask(port, path, {**fields, "stream": True})
    if status != 200:
        return [{"error": text}]
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]


def streamed_text(parts):
    out = ""
    for p in parts:
        choice = (p.get("choices") or [{}])[0]
        out += p.get("content") or choice.get("text") or choice.get("delta", {}).get("content") or (p.get("delta", {}).get("text") if p.get("type") == "content_block_delta" else "") or ""
    return out


def main():
    build, chroot = sys.argv[1], sys.argv[2]
    wanted = re.compile(sys.argv[3] if len(sys.argv) > 3 else "")
    count = bad = 0

    def report(name, found):
        nonlocal count, bad
        found = list(found)
        count, bad = count + 1, bad + bool(found)
        print(f"{name:36}" + ("" if not found else "  <--\n      " + "\n      ".join(found[:8])), flush=True)

    with contextlib.ExitStack() as stack:
        for name, command in servers(build, chroot).items():
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(server.terminate)
            await_ready(PORTS[name])
        for name, fields in SAMPLERS.items():
            for i, prompt in enumerate(PROMPTS):
                if wanted.search(f"samplers {name} {i}"):
                    got, error = both("/completion", {"prompt": prompt, "n_predict": 1, "n_probs": 300, "post_sampling_probs": True, **fields})
                    report(f"samplers {name} {i}", [error] if error else compare_probabilities(probabilities(got[0]), probabilities(got[1])))
        for name, (path, fields) in REQUESTS.items():
            if not wanted.search(name):
                continue
            got, error = both(path, fields)
            if error:
                report(name, [error])
                continue
            if name.startswith("prefilled"):  # its whole answer has the beginning, too, its stream does not
                message = got[1]["choices"][0]["message"]
                message["content"] = message["content"].removeprefix(fields["messages"][-1]["content"])
            found = list(differences(*got))
            if isinstance(got[0], dict):
                found += compare_probabilities(probabilities(got[0]), probabilities(got[1]))
            report(name, found)
            if path in ("/completion", "/v1/completions", "/v1/chat/completions", "/v1/messages") and not isinstance(got[1], list) and "format" not in str(fields):
                a, b = (events(PORTS[s], path, fields) for s in ("ours", "theirs"))
                found = [] if streamed_text(a) == streamed_text(b) != "" else [f"{streamed_text(a)!r} and {streamed_text(b)!r}: {a[-1]}"]
                # Ours is one of several tokens where these come faster than it is written; and its usage is there where it was asked for.
                found += [d for d in [*differences(a[-1], b[-1]), *(differences(a[0], b[0]) if path == "/completion" else ())] if not re.match("/(content|tokens.*|usage|choices/0/delta.*) ?", d)]
                report(f"{name}, streamed", found)
    print(f"{count - bad} of {count}")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
