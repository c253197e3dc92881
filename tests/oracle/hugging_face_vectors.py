#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small random encoders and rerankers of transformers as folders that sentence-transformers could have written, and what they make of texts.

    hugging_face_vectors.py OUT [NAME …]

Writes OUT/NAME/ and OUT/NAME.json for every model of MODELS below. Runs where transformers and PyTorch are: tests/oracle/judge_encoders.py.
"""

import json
import os
import sys
import traceback

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import hugging_face_logits
import random_texts

TEXTS = ["a", "hello world", "The giant panda (Ailuropoda melanoleuca) is a bear species endemic to China.", "Straße, naïve café! 你好世界",
         "don't  stop\n\nnow " * 9]
LONG = "the quick brown fox, 12 lazy dogs and naïve cafés jump over 你好 "
QUERY = "what is a panda?"
DOCUMENTS = ["hi", "it is a bear", "The giant panda (Ailuropoda melanoleuca) is a bear species endemic to China.", "panda panda", LONG * 3]


def wordpiece(vocab):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer, tok.pre_tokenizer, tok.decoder = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tok.train_from_iterator(random_texts.texts(600, 7) + TEXTS, trainers.WordPieceTrainer(
        vocab_size=vocab, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                       special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tok, {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}


ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def unigram(vocab):
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tok.decoder = decoders.Metaspace()
    tok.train_from_iterator(random_texts.texts(600, 7) + TEXTS, trainers.UnigramTrainer(
        vocab_size=vocab, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return tok, ROBERTA


def byte_level(vocab, names, post):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.train_from_iterator(random_texts.texts(600, 7) + TEXTS + ["yes no"] * 500, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.post_processor = post
    return tok


def roberta(vocab):
    return byte_level(vocab, ["<s>", "<pad>", "</s>", "<unk>"], processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)), ROBERTA


def modern(vocab):
    post = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)])
    return byte_level(vocab, ["[CLS]", "[SEP]", "[PAD]"], post), {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}


def qwen(vocab):
    post = processors.TemplateProcessing(single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    return byte_level(vocab, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], post), {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


# Name: class, tokenizer, options of the configuration; pooling, and dense layers behind it (outputs, activation, bias); most tokens of a text.
NARROW = {"num_key_value_heads": None}
QWEN = {"head_dim": 16}
GEMMA = {"head_dim": 16, "sliding_window": 8, "use_bidirectional_attention": True, "query_pre_attn_scalar": 16,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}
MODERN = {"local_attention": 8, "global_attn_every_n_layers": 3, "max_position_embeddings": 1024}
DISTIL = {"dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4}
DEBERTA = {"relative_attention": True, "position_biased_input": False, "share_att_key": True, "position_buckets": 8, "max_relative_positions": -1,
           "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p", "type_vocab_size": 0}
MODELS = {
    "bert-cls": ("BertModel", wordpiece, {}, "cls", [], 400),
    "bert-old-pooling": ("BertModel", wordpiece, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}, "mean", [], 400),
    "bert-masked": ("BertForMaskedLM", wordpiece, {}, "mean", [], 400),
    "bert-tanh": ("BertModel", wordpiece, {}, "cls", [(48, "Tanh", True)], 400),
    "bert-rank": ("BertForSequenceClassification", wordpiece, {"num_labels": 1}, "rank", [], 400),
    "roberta": ("RobertaModel", roberta, {"pad_token_id": 1, "max_position_embeddings": 514, "type_vocab_size": 1}, "mean", [], 400),
    "roberta-rank": ("RobertaForSequenceClassification", roberta, {"num_labels": 1, "pad_token_id": 1, "type_vocab_size": 1}, "rank", [], 400),
    "xlm-roberta": ("XLMRobertaModel", unigram, {"pad_token_id": 1, "max_position_embeddings": 1026, "type_vocab_size": 1}, "cls", [], 900),
    "xlm-roberta-rank": ("XLMRobertaForSequenceClassification", unigram, {"num_labels": 1, "pad_token_id": 1, "type_vocab_size": 1,
                                                                          "max_position_embeddings": 1026}, "rank", [], 900),
    "camembert": ("CamembertModel", unigram, {"pad_token_id": 1, "type_vocab_size": 1}, "mean", [], 400),
    "distilbert": ("DistilBertModel", wordpiece, DISTIL, "mean", [(32, "Tanh", True)], 400),
    "distilbert-rank": ("DistilBertForSequenceClassification", wordpiece, {**DISTIL, "num_labels": 1}, "rank", [], 400),
    "mpnet": ("MPNetModel", roberta, {"pad_token_id": 1, "max_position_embeddings": 514}, "mean", [], 400),
    "mpnet-rank": ("MPNetForSequenceClassification", roberta, {"pad_token_id": 1, "max_position_embeddings": 514, "num_labels": 1}, "rank", [], 400),
    "deberta": ("DebertaV2Model", wordpiece, DEBERTA, "mean", [], 400),
    "deberta-rank": ("DebertaV2ForSequenceClassification", unigram, {**DEBERTA, "num_labels": 1, "position_buckets": 32, "pos_att_type": ["p2c", "c2p"]},
                     "rank", [], 400),
    "deberta-plain": ("DebertaV2Model", wordpiece, {**DEBERTA, "position_buckets": -1, "max_relative_positions": 40, "norm_rel_ebd": "none",
                                                    "pos_att_type": ["c2p"]}, "cls", [], 400),
    "electra": ("ElectraModel", wordpiece, {"embedding_size": 64}, "cls", [], 400),
    "electra-rank": ("ElectraForSequenceClassification", wordpiece, {"embedding_size": 64, "num_labels": 1}, "rank", [], 400),
    "jina-v3": ("JinaEmbeddingsV3Model", unigram, {"pad_token_id": 1, "max_position_embeddings": 1026}, "mean", [], 900),
    "jina-v3-rank": ("JinaEmbeddingsV3ForSequenceClassification", unigram, {"pad_token_id": 1, "num_labels": 1}, "rank", [], 400),
    "eurobert-rank": ("EuroBertForSequenceClassification", modern, {"num_labels": 1, "classifier_pooling": "mean"}, "rank", [], 400),
    "eurobert-rank-bos": ("EuroBertForSequenceClassification", modern, {"num_labels": 1, "classifier_pooling": "bos"}, "rank", [], 400),
    "modern": ("ModernBertModel", modern, {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True}, "cls", [], 900),
    "modern-silu": ("ModernBertForMaskedLM", modern, {**MODERN, "hidden_activation": "silu"}, "mean", [], 900),
    "modern-rank": ("ModernBertForSequenceClassification", modern, {**MODERN, "num_labels": 1, "classifier_pooling": "mean"}, "rank", [], 900),
    "modern-rank-cls": ("ModernBertForSequenceClassification", modern, {**MODERN, "num_labels": 1, "classifier_bias": True, "norm_bias": True}, "rank", [], 900),
    "nomic": ("NomicBertModel", wordpiece, {"max_position_embeddings": 1024}, "mean", [], 900),
    "eurobert": ("EuroBertModel", modern, {"max_position_embeddings": 1024}, "mean", [], 900),
    "gemma": ("Gemma3TextModel", qwen, GEMMA, "mean", [(96, "Identity", False), (64, "Identity", False)], 400),
    "qwen3": ("Qwen3ForCausalLM", qwen, {**QWEN, "tie_word_embeddings": True}, "lasttoken", [], 400),
    "qwen3-body": ("Qwen3Model", qwen, QWEN, "lasttoken", [], 400),
    "mistral-body": ("MistralModel", qwen, {**QWEN, "sliding_window": None}, "lasttoken", [], 400),
    "Qwen3-Reranker": ("Qwen3ForCausalLM", qwen, QWEN, "yesno", [], 400),
}


def write(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        json.dump(value, f)


def pooled(states, kind):
    return states[0] if kind == "cls" else states[-1] if kind == "lasttoken" else states.mean(0)


def rerank_prompt(query, document):
    """Of Qwen3-Reranker's model card."""
    return ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can "
            "only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
            f"<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


def make(path, name):
    kind, make_tokenizer, options, pooling, dense, most = MODELS[name]
    torch.manual_seed(sorted(MODELS).index(name))
    tok, roles = make_tokenizer(4000 if make_tokenizer is unigram else 500)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, **roles)
    options = {"vocab_size": len(tokenizer) + 4, **options}
    if name == "distilbert" or getattr(transformers, kind).config_class.model_type not in ("qwen3", "mistral", "gemma3_text", "eurobert"):
        hugging_face_logits.WITHOUT[kind] = ("num_key_value_heads",)
    model = hugging_face_logits.build(kind, options)
    model.save_pretrained(path)
    if name == "gemma":  # a configuration halves the window that its file says
        with open(path + "/config.json") as f:
            write(path + "/config.json", {**json.load(f), "sliding_window": GEMMA["sliding_window"]})
    tokenizer.save_pretrained(path)
    texts = TEXTS + [LONG * 40]
    long_ids = tokenizer(texts[-1])["input_ids"]
    while len(tokenizer(texts[-1])["input_ids"]) > most:
        texts[-1] = texts[-1][:len(texts[-1]) * 9 // 10].rstrip()
    out = {"texts": texts, "most": max(len(tokenizer(t)["input_ids"]) for t in texts), "long": len(long_ids)}
    # Language tags are no control characters to the library's BertNormalizer, whose Unicode is older.
    samples = [t for t in random_texts.texts(300, 11) if "\x00" not in t and "\U000e0041" not in t]
    out["samples"] = [[t, tokenizer(t)["input_ids"]] for t in samples]
    if pooling in ("rank", "yesno"):
        out.update(query=QUERY, documents=DOCUMENTS, scores=[])
        for document in DOCUMENTS:
            if pooling == "rank":
                with torch.no_grad():
                    # The class of this file would leave out which text a token is of.
                    enc = tokenizer(QUERY, document, return_tensors="pt", return_token_type_ids=kind.startswith(("Bert", "Electra")))
                    out["scores"].append(float(model(**enc).logits[0, 0]))
                continue
            ids = tokenizer(rerank_prompt(QUERY, document), add_special_tokens=False, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, -1]
            out["scores"].append(float(logits[[tok.token_to_id("no"), tok.token_to_id("yes")]].softmax(0)[1]))
        write(path + ".json", out)
        return
    layers, width = [], model.config.hidden_size
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
               {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    modes = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "lasttoken": "pooling_mode_lasttoken"}
    old = {"word_embedding_dimension": width, **{mode: mode == modes[pooling] for mode in (*modes.values(), "pooling_mode_max_tokens")}}
    write(path + "/1_Pooling/config.json", old if "old" in name or dense else {"embedding_dimension": width, "pooling_mode": pooling, "include_prompt": True})
    for i, (rows, activation, bias) in enumerate(dense):
        where = f"{i + 2}_Dense"
        layer = torch.nn.Linear(width, rows, bias=bias)
        write(f"{path}/{where}/config.json", {"in_features": width, "out_features": rows, "bias": bias,
                                              "activation_function": "torch.nn.modules." + ("activation.Tanh" if activation == "Tanh" else "linear.Identity")})
        save_file({"linear." + key: value.detach() for key, value in layer.state_dict().items()}, f"{path}/{where}/model.safetensors")
        layers.append((layer, torch.tanh if activation == "Tanh" else lambda x: x))
        modules.append({"idx": i + 2, "name": str(i + 2), "path": where, "type": "sentence_transformers.models.Dense"})
        width = rows
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": f"{len(modules)}_Normalize", "type": "sentence_transformers.models.Normalize"})
    write(path + "/modules.json", modules)
    body, out["vectors"] = getattr(model, model.base_model_prefix, model), []
    for text in texts:
        with torch.no_grad():
            x = pooled(body(input_ids=tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state[0], pooling)
            for layer, after in layers:
                x = after(layer(x))
            out["vectors"].append(torch.nn.functional.normalize(x, dim=0).tolist())
    write(path + ".json", out)


def main():
    out, *chosen = sys.argv[1:]
    for name in chosen or MODELS:
        try:
            make(os.path.join(out, name), name)
        except Exception:  # the judge names the model that could not be made
            with open(os.path.join(out, name + ".error"), "w") as f:
                f.write(traceback.format_exc())


if __name__ == "__main__":
    main()
