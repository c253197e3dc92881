#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write a GGUF model of any known architecture with random weights, for the tests.

    random_transformer.py OUT.gguf --arch gemma2 [--seed 1] [--key name=value …] [--without tensor …]

It has no vocabulary of texts: tokens are numbers. Which tensors an architecture has was read from
llama.cpp's load_arch_tensors(); llama.cpp loads every file that this writes.
"""

import argparse
import math
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_numpy as gg  # noqa: E402
from random_llama import write  # noqa: E402

# norm: rms or layer (with a bias where "b"); ffn: gated, fused, plain; words: what is there besides.
ARCHITECTURES = {
    "llama": "rms gated", "arcee": "rms plain", "bloom": "layerb plain qkv bias embdnorm norope",
    "chatglm": "rms fused qkv qkvbias half", "cohere2": "layer gated parallel tied", "command-r": "layer gated parallel tied",
    "exaone": "rms gated", "falcon": "layerb plain qkv parallel", "gemma": "rms gated tied", "gemma2": "rms gated postnorm tied",
    "gemma3": "rms gated postnorm qknorm tied", "glm4": "rms fused qkvbias postnorm half", "gpt2": "layerb plain qkv bias positions norope",
    "gptneox": "layerb plain qkv bias half", "granite": "rms gated", "internlm2": "rms gated", "minicpm": "rms gated",
    "mpt": "layer plain qkv norope", "nemotron": "layerb plain half", "olmo": "none gated", "olmo2": "rms gated postnorm nopre wholeqknorm",
    "orion": "layerb gated", "phi2": "layerb plain qkv bias parallel half", "phi3": "rms fused qkv", "qwen2": "rms gated qkvbias",
    "qwen3": "rms gated qknorm", "seed_oss": "rms gated qkvbias latenorm", "smollm3": "rms gated", "stablelm": "layerb gated half",
    "starcoder": "layerb plain qkv bias positions norope", "starcoder2": "layerb plain bias", "xverse": "rms gated",
    "baichuan": "rms gated", "bailingmoe": "rms gated moe", "dbrx": "layer gated moe qkv outnorm", "deepseek": "rms gated moe",
    "deepseek2": "rms gated moe latent", "dots1": "rms gated moe qknorm probsbias", "ernie4_5": "rms gated",
    "ernie4_5-moe": "rms gated moe probsbias", "glm4moe": "rms gated moe qkvbias latenorm half probsbias", "gpt-oss":
    "rms gated moe bias latenorm sinks", "granitemoe": "rms gated moe", "hunyuan-moe": "rms gated moe qknorm",
    "llama4": "rms gated moe", "minicpm3": "rms gated latent", "olmoe": "rms gated moe wholeqknorm",
    "qwen2moe": "rms gated moe qkvbias sharedgate", "qwen3moe": "rms gated moe qknorm",
    "apertus": "rms plain qknorm", "bailingmoe2": "rms gated moe qkv qknorm probsbias half", "codeshell": "layerb plain qkv bias",
    "exaone4": "rms gated postnorm nopre qknorm", "hunyuan-dense": "rms gated qknorm", "jais": "layerb gated qkv bias norope",
    "minimax-m2": "rms gated moe wholeqknorm probsbias half", "mistral3": "rms gated", "pangu-embedded": "rms gated qkvbias outbias",
    "phimoe": "rmsb gated moe qkvbias outbias", "qwen": "rms gated qkv onlyqkvbias", "qwen2vl": "rms gated qkvbias",
    "qwen3vl": "rms gated qknorm", "qwen3vlmoe": "rms gated moe qknorm", "refact": "rms gated norope",
    "qwen35": "rms gated delta qknorm latenorm half", "qwen35moe": "rms gated moe delta qknorm latenorm half sharedgate",
    "qwen3next": "rms gated moe delta qknorm latenorm half sharedgate ba",
    "lfm2": "rms gated shortconv qknorm", "lfm2moe": "rms gated moe shortconv qknorm probsbias",
    # State spaces: alone, beside attention in every block, or in blocks without heads.
    "mamba": "rms gated norope mamba alone", "mamba2": "rms gated norope mamba2 alone", "falcon-h1": "rms gated mamba2 beside",
    "granitehybrid": "rms gated moe mamba2", "jamba": "rms gated norope moe mamba ssmnorms", "nemotron_h": "rms plain norope mamba2 one",
    "nemotron_h_moe": "rms plain norope moe mamba2 one probsbias",
    "kimi-linear": "rms gated norope moe latent plainq kda probsbias", "bailingmoe3": "rms gated moe latent kda fullrank headgate probsbias",
    "kimi-k3": "rms gated norope moe latent kda resultgate probsbias latentmoe", "hy_v4": "rms gated moe latent split resultgate sinks probsbias", "grok": "rms gated moe latepost",
    # RWKV: alone, and in place of attention.
    "rwkv6": "layerb plain norope rwkv6 mix embdnorm", "rwkv7": "layerb plain norope rwkv7 mix embdnorm",
    "rwkv6qwen2": "rms gated norope rwkv6", "arwkv7": "rms gated norope rwkv7",
    # Blocks with inputs of their own, and keys and values of others.
    "gemma3n": "rms gated postnorm qknorm tied layerinputs altup", "gemma4": "rms gated postnorm qknorm tied layerinputs",
    "afmoe": "rms gated moe postnorm qknorm attngate probsbias", "arctic": "rms gated moe", "bitnet": "rms gated tied subnorms", "deci": "rms gated",
    "exaone-moe": "rms gated moe qknorm probsbias", "hunyuan_vl": "rms gated qknorm", "jais2": "layerb plain bias", "maincoder": "rms gated qknorm",
    "mellum": "rms gated moe qknorm", "mistral4": "rms gated moe latent", "openelm": "rms gated qkv qknorm tied", "paddleocr": "rms gated",
    "cohere2moe": "layer gated moe parallel tied", "granite_swa": "rms gated sinks", "laguna": "rms gated moe qknorm probsbias headgate",
    "mimo2": "rms gated moe probsbias localsinks", "nanbeige": "rms gated", "step35": "rms gated moe qknorm probsbias headgate",
    "maion-coder": "rms gated moe qknorm postnorm latentmoe", "maple": "rms gated moe qknorm", "grovemoe": "rms gated moe qknorm", "plamo": "rms gated parallel", "k2-horizon": "rms gated moe wholeqknorm probsbias attngate",
    "plamo3": "rms fused qkv qknorm postnorm", "plm": "rms plain latent tied plainq", "smallthinker": "rms gated moe",
    # An indexer chooses what attention reads: of more tokens than these models have.
    "deepseek32": "rms gated moe latent split probsbias indexer", "glm-dsa": "rms gated moe latent split probsbias indexer",
    "minimax-m3": "rms gated moe qknorm probsbias half indexer",
    "deepseek2-ocr": "rms gated moe", "hy_v3": "rms gated moe qknorm probsbias", "muse-glimmer": "rms gated postnorm qknorm attngate",
    "spark2_5": "rms gated headgate tied",
    # Encoders: no logits.
    "eurobert": "rms gated nohead",
    "deberta-v2": "layerb plain bias norope encoder embdnorm",
    "bert": "layerb plain bias positions norope encoder types embdnorm", "jina-bert-v2": "layerb gated downbias qkvbias norope encoder types embdnorm",
    "jina-bert-v3": "layerb plain qkv bias encoder types embdnorm", "nomic-bert": "layerb gated qkv encoder types embdnorm",
    "nomic-bert-moe": "layerb plain qkv bias moe encoder types embdnorm", "modern-bert": "layer fused qkv embdnorm nohead",
    "neo-bert": "rms fused qkv nohead", "gemma-embedding": "rms gated postnorm qknorm nohead", "llama-embed": "rms gated",
    "t5encoder": "rms gated norope nohead", "t5": "rms gated norope", "gemma-embedding2": "rms gated postnorm qknorm nohead layerinputs",
}
# Of mixtures of experts: how many, how many are used, their length, that of the shared expert. llama.cpp demands keys.
EXPERTS, USED, LENGTH = 6, 2, 64
SHARED = {"bailingmoe3": 64, "kimi-k3": 64, "hy_v4": 64, "k2-horizon": 64, "deepseek32": 64, "glm-dsa": 64, "minimax-m3": 64, "deepseek2-ocr": 128, "hy_v3": 64, "kimi-linear": 64, "cohere2moe": 64, "granite_swa": 96, "laguna": 64, "step35": 64, "afmoe": 64, "exaone-moe": 64, "mistral4": 64, "bailingmoe": 64, "deepseek": 128, "deepseek2": 64, "dots1": 64, "ernie4_5-moe": 96, "glm4moe": 64, "hunyuan-moe": 96,
          "llama4": 64, "qwen2moe": 96, "bailingmoe2": 128, "granitehybrid": 96, "nemotron_h_moe": 96, "qwen35moe": 96, "qwen3next": 96}
# Metadata that llama.cpp demands, or that makes a difference in so small a model; with a slash: without the prefix.
KEYS = {
    "cohere2": {"attention.sliding_window": 5, "logit_scale": 0.25}, "command-r": {"logit_scale": 0.0625},
    "gemma2": {"attention.sliding_window": 6, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "gemma3": {"attention.sliding_window": 6, "rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    "afmoe": {"attention.sliding_window": 6, "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 1.7,
              "expert_weights_norm": True, "expert_gating_func": 2},
    # A block with heads, one with a matrix in their place, two without, of which one does nothing.
    "deci": {"attention.head_count": [6, 6, 0, 0, 6], "attention.head_count_kv": [2, 0, 0, 0, 1], "feed_forward_length": [160, 96, 160, 0, 320],
             "attention.key_length": 16, "attention.value_length": 16},
    "exaone-moe": {"attention.sliding_window": 6, "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.5,
                   "expert_weights_norm": True, "expert_gating_func": 2, "expert_shared_feed_forward_length": 64},
    "hunyuan_vl": {"rope.dimension_sections": [2, 2, 2, 2], "rope.scaling.alpha": 50.0},
    "mellum": {"attention.sliding_window": 6, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
    "mistral4": {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 1.5, "expert_weights_norm": True},
    "openelm": {"attention.head_count": [6, 4, 8], "attention.head_count_kv": [2, 2, 4], "feed_forward_length": [96, 128, 160],
                "attention.key_length": 16, "attention.value_length": 16},
    "paddleocr": {"rope.dimension_sections": [2, 3, 3, 0]},
    "smallthinker": {"attention.sliding_window": 6, "expert_gating_func": 2},
    "cohere2moe": {"attention.sliding_window": 5, "attention.sliding_window_pattern": 4, "logit_scale": 0.25, "leading_dense_block_count": 1,
                   "expert_shared_count": 1, "expert_weights_norm": True, "expert_gating_func": 2},
    "granite_swa": {"embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 4.0, "attention.scale": 0.2, "attention.sliding_window": 6,
                    "attention.sliding_window_pattern": [True, True, False, True, False], "attention.rope_pattern": [True, False, True, True, False]},
    "laguna": {"attention.head_count": [6, 4, 4, 4, 6], "attention.head_count_kv": [2] * 5, "attention.key_length": 16,
               "attention.value_length": 16, "attention.sliding_window": 6, "rope.dimension_count": 8, "rope.dimension_count_swa": 16,
               "rope.freq_base": 5e5, "rope.freq_base_swa": 1e4, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
               "rope.scaling.original_context_length": 32, "leading_dense_block_count": 1, "expert_shared_feed_forward_length": 64,
               "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2},
    "mimo2": {"attention.head_count_kv": [1, 2, 2, 2, 1], "attention.key_length": 24, "attention.value_length": 16,
              "attention.sliding_window": 6, "attention.sliding_window_pattern": [0, 1, 1, 1, 0], "rope.dimension_count": 8,
              "rope.freq_base": 5e6, "rope.freq_base_swa": 1e4, "attention.value_scale": 0.7, "leading_dense_block_count": 1},
    "nanbeige": {"num_loops": 2, "skip_loop_final_norm": False, "attention.head_dim": 16, "attention.key_length": 16, "attention.value_length": 16},
    "eurobert": {"attention.causal": False},
    "plamo3": {"attention.sliding_window": 6, "attention.sliding_window_pattern": 3, "attention.key_length": 24, "attention.value_length": 16,
               "rope.dimension_count": 24, "rope.freq_base": 1e6},
    "step35": {"attention.head_count": [6, 4, 4, 4, 6], "attention.head_count_kv": [2] * 5, "attention.key_length": 16,
               "attention.value_length": 16, "attention.sliding_window": 6, "attention.sliding_window_pattern": [False, True, True, True, False],
               "rope.dimension_count": 16, "rope.freq_base": 5e6, "rope.freq_base_swa": 1e4, "leading_dense_block_count": 1,
               "expert_shared_feed_forward_length": 64, "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2,
               "swiglu_clamp_exp": [0.0, 0.0, 0.3, 0.0, 0.5], "swiglu_clamp_shexp": [0.0, 0.0, 0.0, 0.4, 0.0]},
    # Lengths, numbers of blocks and shares that llama.cpp does not read but has as constants.
    "gemma3n": {"attention.sliding_window": 6, "rope.freq_base": 1e6, "embedding_length_per_layer_input": 256, "attention.shared_kv_layers": 5,
                "altup.num_inputs": 4, "altup.active_idx": 0, "activation_sparsity_scale": [1.6448536] * 10 + [-math.inf] * 15},
    "gemma4": {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, False] * 2, "rope.freq_base": 1e6,
               "attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": 16, "attention.value_length_swa": 16,
               "rope.dimension_count": 32, "rope.dimension_count_swa": 16, "attention.head_count_kv": [2, 2, 1] * 2,
               "feed_forward_length": [160] * 3 + [320] * 3, "embedding_length_per_layer_input": 32, "attention.shared_kv_layers": 3,
               "final_logit_softcapping": 3.0},
    **{name: {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.5, "expert_weights_norm": True,
              "attention.indexer.head_count": 2, "attention.indexer.key_length": 64, "attention.indexer.top_k": 1024, **more} for name, more in (
        ("deepseek32", {"expert_gating_func": 2}), ("glm-dsa", {}),
        ("minimax-m3", {"expert_gating_func": 2, "attention.indexer.block_size": 128, "attention.indexer.local_blocks": 1}))},
    "deepseek2-ocr": {"leading_dense_block_count": 1, "expert_shared_count": 2, "rope.dimension_count": 0},
    "hy_v3": {"leading_dense_block_count": 1, "expert_shared_feed_forward_length": 64, "expert_weights_scale": 2.8, "expert_weights_norm": True},
    "spark2_5": {"attention.head_count": [6, 4, 4, 4, 6], "attention.head_count_kv": [2] * 5, "attention.key_length": 16, "attention.value_length": 16,
                 "attention.sliding_window": 6, "attention.sliding_window_pattern": [False, True, True, True, False], "rope.dimension_count": 8,
                 "rope.dimension_count_swa": 16, "rope.freq_base": 5e6, "rope.freq_base_swa": 1e4},
    "maple": {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, False, True, False], "rope.freq_base": 1e6,
              "rope.freq_base_swa": 1e4, "swiglu_clamp_exp": [0.3, 0.5, 0.4, 0.3, 0.6]},
    "k2-horizon": {"attention.group_norm_groups": 4, "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.5,
                   "expert_weights_norm": True},
    "muse-glimmer": {"attention.layer_norm_rms_epsilon": 0.01, "attention.sliding_window": 6, "logit_scale": 0.25, "final_logit_softcapping": 2.0, "rope.freq_base_swa": 5e5},
    "gptneox": {"use_parallel_residual": True},
    "granite": {"embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 4.0, "attention.scale": 0.2},
    "bailingmoe": {"leading_dense_block_count": 0, "expert_shared_count": 1, "expert_weights_scale": 1.0, "expert_weights_norm": True},
    "dbrx": {"attention.clamp_kqv": 0.9},
    "deepseek": {"leading_dense_block_count": 1, "expert_shared_count": 2, "expert_weights_scale": 1.0},
    "deepseek2": {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 1.5},
    "dots1": {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.5, "expert_weights_norm": True,
              "expert_gating_func": 2},
    "ernie4_5-moe": {"leading_dense_block_count": 1, "interleave_moe_layer_step": 1, "expert_shared_feed_forward_length": 96},
    "glm4moe": {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 1.7, "expert_weights_norm": True},
    "gpt-oss": {"attention.sliding_window": 6},
    "granitemoe": {"embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 4.0, "attention.scale": 0.2},
    "hunyuan-moe": {"expert_shared_feed_forward_length": 96},
    "llama4": {"interleave_moe_layer_step": 2},
    "qwen2moe": {"expert_shared_feed_forward_length": 96},
    "apertus": {"/xielu.alpha_n": [0.3, 0.8, 0.5], "/xielu.alpha_p": [0.7, 0.2, 0.9], "/xielu.beta": [0.5, 0.4, 0.6],
                "/xielu.eps": [-1e-6, -1e-6, -1e-6]},
    "bailingmoe2": {"leading_dense_block_count": 1, "expert_shared_count": 2, "expert_shared_feed_forward_length": 64,
                    "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2, "expert_group_count": 3,
                    "expert_group_used_count": 2},
    **{name: {"ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.time_step_rank": 4, "ssm.group_count": 2,
              "rope.dimension_sections": [2, 1, 1, 0], "expert_shared_feed_forward_length": 96} for name in ("qwen35", "qwen35moe", "qwen3next")},
    "lfm2": {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 0, 2, 0, 2]},
    "lfm2moe": {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 0, 2, 0, 2], "leading_dense_block_count": 2, "expert_gating_func": 2},
    **{name: {"ssm.conv_kernel": 4, "ssm.inner_size": 192, "ssm.state_size": 16, "ssm.time_step_rank": 6, "ssm.group_count": 2,
              **more} for name, more in (
        *((name, {"attention.head_count": 0, "attention.head_count_kv": None, "feed_forward_length": 0}) for name in ("mamba", "mamba2")),
        ("falcon-h1", {}), ("jamba", {"attention.head_count_kv": [0, 0, 2, 0, 2]}),
        ("granitehybrid", {"embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 4.0, "attention.scale": 0.2,
                           "attention.head_count_kv": [0, 0, 2, 0, 2], "expert_shared_feed_forward_length": 96,
                           "rope.scaling.finetuned": False}),
        ("nemotron_h", {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": [0, 0, 2, 0, 0], "feed_forward_length": [0, 160, 0, 0, 160]}),
        ("nemotron_h_moe", {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": [0, 0, 2, 0, 0], "feed_forward_length": [0, 64, 0, 0, 64], "expert_shared_count": 1,
                            "expert_shared_feed_forward_length": 96, "expert_weights_norm": True, "expert_weights_scale": 2.5,
                            "expert_group_count": 1}))},
    "kimi-linear": {"attention.head_count_kv": [0, 1, 0, 0, 1], "ssm.conv_kernel": 4, "kda.head_dim": 16, "rope.dimension_count": 8,
                    "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.446, "expert_gating_func": 2},
    "bailingmoe3": {"attention.head_count_kv": [0, 1, 0, 0, 1], "ssm.conv_kernel": 4, "kda.head_dim": 16, "kda.safe_gate": True,
                    "kda.gate_lower_bound": -5.0, "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_shared_feed_forward_length": 64,
                    "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2, "swiglu_clamp_exp": [0.0, 0.0, 0.3, 0.0, 0.5],
                    "swiglu_clamp_shexp": [0.0, 0.0, 0.0, 0.4, 0.0]},
    # Two of five blocks keep what they read.
    "kimi-k3": {"attention.head_count_kv": [0, 1, 0, 0, 1], "ssm.conv_kernel": 4, "kda.head_dim": 16, "kda.gate_lower_bound": -5.0,
                "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2,
                "attn_res.block_size": 3, "expert_latent_length": 32, "activation.situ_beta": 1.5, "activation.situ_linear_beta": 2.5},
    "hy_v4": {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2,
              "hyper_connection.count": 4, "hyper_connection.epsilon": 0.01, "hyper_connection.magnitude": 2.0, "swiglu_clamp_exp": [0.0, 0.4, 0.3]},
    "maion-coder": {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, False, True], "interleave_moe_layer_step": 2,
                    "moe_latent_size": 32},
    # Each three experts share one.
    "grovemoe": {"expert_chunk_feed_forward_length": 32, "experts_per_group": 3, "expert_group_scale": 0.5},
    "grok": {"embedding_scale": 1.5, "logit_scale": 0.5, "attention.output_scale": 0.3, "attn_logit_softcapping": 3.0,
             "final_logit_softcapping": 2.0},
    **{name: {"wkv.head_size": 16, "token_shift_count": 2 if name in ("rwkv6", "rwkv7") else 1, "attention.head_count": 0, "attention.head_count_kv": 0,
              **({"time_mix_extra_dim": 24, "time_decay_extra_dim": 40} if "6" in name else
                 {"attention.decay_lora_rank": 24, "attention.iclr_lora_rank": 40, "attention.value_residual_mix_lora_rank": 32,
                  "attention.gate_lora_rank": 48}), **more} for name, more in (
        ("rwkv6", {"rescale_every_n_layers": 2}), ("rwkv7", {}), ("rwkv6qwen2", {"attention.head_count_kv": 2}), ("arwkv7", {}))},
    "jais": {"attention.max_alibi_bias": 8.0},
    "minimax-m2": {"expert_gating_func": 2},
    "qwen2vl": {"rope.dimension_sections": [2, 3, 3, 0]}, "qwen3vl": {"rope.dimension_sections": [3, 3, 2, 0]},
    "qwen3vlmoe": {"rope.dimension_sections": [3, 3, 2, 0]},
    **{name: {"attention.causal": False, "pooling_type": 1} for name in ("bert", "jina-bert-v3", "nomic-bert")},
    "jina-bert-v2": {"attention.causal": False, "pooling_type": 1},
    "deberta-v2": {"attention.causal": False, "pooling_type": 1, "attention.relative_span": 8, "attention.relative_limit": 24},
    "nomic-bert-moe": {"attention.causal": False, "pooling_type": 1, "moe_every_n_layers": 2},
    "modern-bert": {"attention.causal": False, "pooling_type": 2, "attention.sliding_window": 6, "rope.freq_base": 160000.0,
                    "rope.freq_base_swa": 10000.0},
    "gemma-embedding2": {"attention.causal": False, "attention.sliding_window": 6, "rope.freq_base": 1e6, "attention.key_length": 32,
                         "attention.value_length": 32, "attention.key_length_swa": 16, "attention.value_length_swa": 16, "rope.dimension_count": 32,
                         "rope.dimension_count_swa": 16, "attention.sliding_window_pattern": [True] * 5 + [False, True],
                         "attention.head_count_kv": [2] * 5 + [1, 2], "embedding_length_per_layer_input": 32, "embedding_length_out": 40},
    "t5": {"attention.relative_buckets_count": 8, "attention.key_length": 24, "attention.value_length": 24, "decoder_start_token_id": 3},
    "t5encoder": {"attention.relative_buckets_count": 8, "attention.key_length": 24, "attention.value_length": 24},
    "neo-bert": {"attention.causal": False, "pooling_type": 1}, "llama-embed": {"attention.causal": False},
    "gemma-embedding": {"attention.causal": False, "attention.sliding_window": 6, "rope.freq_base": 1e6},
    "mpt": {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 0.9}, "olmo": {"attention.clamp_kqv": 0.8},
}
LAYERS = {**dict.fromkeys(("maple", "muse-glimmer", "spark2_5", "kimi-linear", "bailingmoe3", "kimi-k3", "cohere2moe", "granite_swa", "laguna", "mimo2", "step35", "afmoe", "exaone-moe", "mellum", "smallthinker", "deci"), 5), "gemma3n": 25, "gemma4": 6, **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "granitehybrid", "jamba", "nemotron_h", "nemotron_h_moe"), 5), "gemma-embedding": 7, "gemma-embedding2": 7, "modern-bert": 5, "cohere2": 5, "gemma2": 3, "gemma3": 7, "smollm3": 5, "olmo2": 4, "llama4": 4, "maion-coder": 4}
# 6: as many as there are heads.
SINGLE_KV = {**dict.fromkeys(("bert", "deberta-v2", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "modern-bert", "neo-bert", "t5encoder", "t5",
                              "jais", "qwen", "deepseek2-ocr"), 6),
             "refact": 1, "starcoder": 1, "bloom": 6, "gpt2": 6, "mpt": 6, "gptneox": 6, "phi2": 6, "dots1": 6, "olmoe": 6}


def main():
    ap = argparse.ArgumentParser(description="Random GGUF model of an architecture.")
    ap.add_argument("out")
    ap.add_argument("--arch", required=True, choices=sorted(ARCHITECTURES))
    for name, value in (("dim", 96), ("heads", 6), ("layers", 0), ("ffn", 160), ("vocab", 64), ("context", 128), ("seed", 1)):
        ap.add_argument("--" + name, type=int, default=value)
    ap.add_argument("--key", action="append", default=[], help="name=value, without the architecture's prefix")
    ap.add_argument("--tensor", action="append", default=[], help="also: attn_norm_2, rope_long, rope_short, rope_freqs, moe, probsbias, split, plainq, nextn, apart, dense, nogate, mixnorm, fusedup, plainup, gateup, biases, tied, indexer, scales, cls, yesno, dense2, distances, sumbias")
    ap.add_argument("--texts", action="store_true", help="a vocabulary of bytes and numbers, 259 tokens at least")
    ap.add_argument("--without", action="append", default=[], help="no tensor whose name has this in it")
    a = ap.parse_args()
    words = ARCHITECTURES[a.arch].split()
    rng = np.random.default_rng(a.seed)
    layers = a.layers or LAYERS.get(a.arch, 3)
    is_latent, has_experts = "latent" in words, "moe" in words or "moe" in a.tensor
    head, kv_heads = a.dim // a.heads, a.heads if is_latent or SINGLE_KV.get(a.arch) == 6 else SINGLE_KV.get(a.arch, 2)
    q, kv = a.dim, kv_heads * head
    rotated = head // 2 if "half" in words else head
    p = a.arch + "."
    epsilon = "attention.layer_norm_rms_epsilon" if words[0].startswith("rms") else "attention.layer_norm_epsilon"
    m = {"general.architecture": a.arch, "tokenizer.ggml.model": "no_vocab", p + "vocab_size": a.vocab,
         p + "context_length": a.context, p + "embedding_length": a.dim, p + "block_count": layers,
         p + "feed_forward_length": a.ffn, p + "attention.head_count": a.heads, p + "attention.head_count_kv": kv_heads,
         p + epsilon: 1e-5}
    if "norope" not in words:
        m[p + "rope.dimension_count"] = rotated
    # Latent attention: components of keys and values, of queries; lengths of a head.
    rank, query_rank, plain, turned, value_length = 32, 0 if "plainq" in a.tensor + words else 40, 16, 8, 20
    is_split = "split" in a.tensor + words or "kda" in words
    if is_latent:
        rotated = turned
        m[p + "rope.dimension_count"] = turned
        m[p + "attention.kv_lora_rank"] = rank
        if query_rank:
            m[p + "attention.q_lora_rank"] = query_rank
        lengths = {"attention.key_length": plain + turned, "attention.value_length": value_length}
        if is_split:
            m[p + "attention.head_count_kv"] = 1
            lengths = {"attention.key_length": rank + turned, "attention.value_length": rank,
                       "attention.key_length_mla": plain + turned, "attention.value_length_mla": value_length}
        m.update({p + key: value for key, value in lengths.items()})
    length = LENGTH
    if a.arch == "qwen":
        m[p + "feed_forward_length"] = 2 * a.ffn  # of gate and up together
    if a.arch == "smallthinker":
        m[p + "feed_forward_length"] = LENGTH
    if has_experts:
        m[p + "expert_count"], m[p + "expert_used_count"] = EXPERTS, USED
        if a.arch in ("llama", "dbrx", "granitemoe", "hunyuan-moe", "olmoe", "phimoe", "nomic-bert-moe", "minimax-m2"):
            length = a.ffn  # these have no other length
        if a.arch == "granite_swa":
            m[p + "expert_shared_feed_forward_length"] = SHARED[a.arch]
        if a.arch in ("granitehybrid", "jamba", "arctic", "granite_swa"):
            length = a.ffn
        elif a.arch not in ("llama", "dbrx", "granitemoe", "olmoe", "phimoe", "nomic-bert-moe"):
            m[p + "expert_feed_forward_length"] = length
    for key, value in KEYS.get(a.arch, {}).items():
        m[key[1:] if key.startswith("/") else p + key] = value
    m = {key: value for key, value in m.items() if value is not None}
    if "rope.dimension_count" not in KEYS.get(a.arch, {}) and not is_latent and p + "rope.dimension_count" in m:
        m[p + "rope.dimension_count"] = min(m[p + "rope.dimension_count"], m.get(p + "attention.key_length", head))
    if isinstance(m.get(p + "activation_sparsity_scale"), list):
        m[p + "activation_sparsity_scale"] = m[p + "activation_sparsity_scale"][:layers]
    for pair in a.key:
        key, value = pair.split("=")
        if "," in value:
            m[p + key] = [int(part) for part in value.split(",")]
            continue
        m[p + key] = value == "true" if value in ("true", "false") else float(value) if "." in value else (
            int(value) if value.isdigit() else value)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / columns ** 0.5).astype(np.float32)

    def matrices(rows, columns):
        return (rng.standard_normal((EXPERTS, rows, columns)) / columns ** 0.5).astype(np.float32)

    def gain(*shape):
        return (1 + 0.3 * rng.standard_normal(shape)).astype(np.float32)

    def bias(n):
        return (0.2 * rng.standard_normal(n)).astype(np.float32)

    t = {"token_embd.weight": matrix(a.vocab, a.dim) * 4}

    def norm(name, n=a.dim):
        if words[0] == "none":
            return
        t[name + ".weight"] = gain(n)
        if words[0] in ("layerb", "rmsb"):
            t[name + ".bias"] = bias(n)

    def linear(name, rows, columns, has_bias):
        t[name + ".weight"] = matrix(rows, columns)
        if has_bias:
            t[name + ".bias"] = bias(rows)

    if "embdnorm" in words:
        norm("token_embd_norm")
    if a.arch == "deberta-v2":
        t["rel_embd.weight"] = rng.standard_normal((2 * m[p + "attention.relative_span"], a.dim)).astype(np.float32)
        t["rel_embd_norm.weight"], t["rel_embd_norm.bias"] = (1 + 0.3 * rng.standard_normal(a.dim)).astype(np.float32), bias(a.dim)
    if "positions" in words:
        t["position_embd.weight"] = matrix(a.context, a.dim) * 4
    is_encoder = "encoder" in words
    if "types" in words:
        t["token_types.weight"] = matrix(2, a.dim) * 4
        m["tokenizer.ggml.token_type_count"] = 2
    if not is_encoder:
        norm("enc.output_norm" if a.arch in ("neo-bert", "t5encoder") else "token_embd_norm" if "shortconv" in words else "output_norm")
    if "tied" not in words + a.tensor and not is_encoder and "nohead" not in words:
        linear("output", a.vocab, a.dim, a.arch in ("phi2", "phimoe"))
    for name in a.tensor:
        if name in ("rope_long", "rope_short", "rope_freqs"):
            full = {"rope_long": "rope_factors_long", "rope_short": "rope_factors_short"}.get(name, name)
            t[full + ".weight"] = rng.uniform(1, 8, rotated // 2).astype(np.float32)
    own = m.get(p + "embedding_length_per_layer_input", 0) if "layerinputs" in words else 0
    if a.arch == "gemma-embedding2":
        linear("output", m[p + "embedding_length_out"], a.dim, False)
    elif own:
        t["per_layer_token_embd.weight"] = matrix(a.vocab, own * layers) * 4
    if own:
        linear("per_layer_model_proj", own * layers, a.dim, False)
        t["per_layer_proj_norm.weight"] = gain(own)
    if "altup" in words:
        for name in ("altup_proj", "altup_unembd_proj"):
            t[name + ".weight"] = matrix(3 * a.dim, a.dim).reshape(3, a.dim, a.dim)
    if a.arch == "gemma4":  # a quarter of what sees all is rotated
        t["rope_freqs.weight"] = np.array([1.0] * 4 + [1e30] * 12, np.float32)
    everywhere = "bias" in words
    if a.arch == "kimi-k3":
        t["output_res_score.weight"] = bias(a.dim)
    norm_name = "post_attention_norm" if "latenorm" in words else "attn_output_norm" if "outnorm" in words and "latepost" not in words else "ffn_norm"
    leading, step = (m.get(p + key, other) for key, other in (("leading_dense_block_count", 0), ("interleave_moe_layer_step", 1)))

    def hyper(name, kinds):
        count = m[p + "hyper_connection.count"]
        linear(name + "fn", kinds * count, count * a.dim, False)
        t[name + "base.weight"], t[name + "scale.weight"] = bias(kinds * count) * 5, gain(kinds)

    def latent_attention(b):
        if query_rank:
            linear(b + "attn_q_a", query_rank, a.dim, False)
            t[b + "attn_q_a_norm.weight"] = gain(query_rank)
        linear(b + ("attn_q_b" if query_rank else "attn_q"), a.heads * (plain + turned), query_rank or a.dim, False)
        linear(b + "attn_kv_a_mqa", rank + turned, a.dim, False)
        t[b + "attn_kv_a_norm.weight"] = gain(rank)
        if is_split:
            t[b + "attn_k_b.weight"] = matrix(a.heads * rank, plain).reshape(a.heads, rank, plain)
            t[b + "attn_v_b.weight"] = matrix(a.heads * value_length, rank).reshape(a.heads, value_length, rank)
        else:
            linear(b + "attn_kv_b", a.heads * (plain + value_length), rank, False)
        linear(b + "attn_output", a.dim, a.heads * value_length, False)

    def experts(b):
        # A wide router: rounding does not change which experts are the best.
        t[b + "ffn_gate_inp.weight"] = matrix(EXPERTS, a.dim) * 3
        kinds = {"gate": (length, a.dim), "up": (length, a.dim), "down": (a.dim, length), "gate_up": (2 * length, a.dim)}
        names = ["gate_up", "down"] if "gateup" in a.tensor else ["up", "down"] if "plain" in words else ["gate", "up", "down"]
        few = m.get(p + "moe_latent_size", m.get(p + "expert_latent_length", 0))
        if few:
            latent = b + ("ffn_routed_" if a.arch == "kimi-k3" else "ffn_latent_")
            linear(latent + "down", few, a.dim, False)
            linear(latent + "up", a.dim, few, False)
            if a.arch == "kimi-k3":
                t[latent + "norm.weight"] = gain(few)
            kinds = {name: tuple(few if n == a.dim else n for n in shape) for name, shape in kinds.items()}
        for name in names:
            rows, columns = kinds[name]
            t[b + f"ffn_{name}_exps.weight"] = matrices(rows, columns)
            if everywhere and not is_encoder:
                t[b + f"ffn_{name}_exps.bias"] = (0.2 * rng.standard_normal((EXPERTS, rows))).astype(np.float32)
        if everywhere and not is_encoder:
            t[b + "ffn_gate_inp.bias"] = bias(EXPERTS)
        if "probsbias" in words or "probsbias" in a.tensor:
            t[b + ("exp_probs_b" if a.arch == "hy_v3" else "exp_probs_b.bias")] = bias(EXPERTS)
        if a.arch == "grovemoe":
            count, few = EXPERTS // m[p + "experts_per_group"], m[p + "expert_chunk_feed_forward_length"]
            for name, rows, columns in (("gate", few, a.dim), ("up", few, a.dim), ("down", a.dim, few)):
                t[b + f"ffn_{name}_chexps.weight"] = matrices(rows, columns)[:count]
        if "sharedgate" in words:
            t[b + "ffn_gate_inp_shexp.weight"] = gain(a.dim) - 1
        if a.arch == "granite_swa":  # of gate and up together
            linear(b + "ffn_up_shexp", 2 * SHARED[a.arch], a.dim, False)
            linear(b + "ffn_down_shexp", a.dim, SHARED[a.arch], False)
        elif a.arch in SHARED:
            for name, rows, columns in ((("gate", SHARED[a.arch], a.dim),) if "plain" not in words else ()) + (("up", SHARED[a.arch], a.dim), ("down", a.dim, SHARED[a.arch])):
                linear(b + f"ffn_{name}_shexp", rows, columns, False)

    def delta_net(b):
        length, heads, groups, kernel = (m[p + "ssm." + key] for key in ("state_size", "time_step_rank", "group_count", "conv_kernel"))
        channels = (heads + 2 * groups) * length
        linear(b + "attn_qkv", channels, a.dim, False)
        linear(b + "attn_gate", heads * length, a.dim, False)
        t[b + "ssm_conv1d.weight"] = matrix(channels, kernel)
        t[b + "ssm_dt.bias"], t[b + "ssm_a"] = bias(heads), -np.exp(bias(heads)).astype(np.float32)
        for name, rows in (("ba", 2 * heads),) if "ba" in words else (("beta", heads), ("alpha", heads)):
            linear(b + "ssm_" + name, rows, a.dim, False)
        t[b + "ssm_norm.weight"] = gain(length)
        linear(b + "ssm_out", a.dim, heads * length, False)

    def short_convolution(b):
        linear(b + "shortconv.in_proj", 3 * a.dim, a.dim, False)
        t[b + "shortconv.conv.weight"] = matrix(a.dim, m[p + "shortconv.l_cache"])
        linear(b + "shortconv.out_proj", a.dim, a.dim, False)

    def mamba(b):
        inner, keys, rank, kernel = (m[p + "ssm." + key] for key in ("inner_size", "state_size", "time_step_rank", "conv_kernel"))
        groups = m[p + "ssm.group_count"]
        is_first = "mamba" in words
        channels, heads = (inner, inner) if is_first else (inner + 2 * groups * keys, rank)
        linear(b + "ssm_in", inner + channels + (0 if is_first else heads), a.dim, False)
        t[b + "ssm_conv1d.weight"], t[b + "ssm_conv1d.bias"] = matrix(channels, kernel), bias(channels)
        linear(b + "ssm_out", a.dim, inner, False)
        if is_first:
            linear(b + "ssm_x", rank + 2 * keys, inner, False)
            linear(b + "ssm_dt", inner, rank, True)
            t[b + "ssm_a"], t[b + "ssm_d"] = -np.exp(rng.standard_normal((inner, keys))).astype(np.float32), gain(inner)
            if "ssmnorms" in words:
                for name, n in (("dt", rank), ("b", keys), ("c", keys)):
                    t[b + f"ssm_{name}_norm.weight"] = gain(n)
            return
        t[b + "ssm_dt.bias"] = bias(heads)
        t[b + "ssm_a"], t[b + "ssm_d"] = -np.exp(rng.standard_normal((heads, 1))).astype(np.float32), gain(heads, 1)
        t[b + "ssm_norm.weight"] = gain(groups, inner // groups)

    def low_rank(b, first, second, rank):
        linear(b + first, rank, a.dim, False)
        linear(b + second, a.dim, rank, False)

    def key_decay(b):
        size, kernel = m[p + "kda.head_dim"], m[p + "ssm.conv_kernel"]
        for name in "qkv":
            linear(b + "attn_" + name, a.heads * size, a.dim, False)
            t[b + f"ssm_conv1d_{name}.weight"] = matrix(a.heads * size, kernel).reshape(1, a.heads * size, 1, kernel)
        is_bounded = "fullrank" in words
        for name in "f" if a.arch == "kimi-k3" else "fg":
            linear(b + f"ssm_{name}_a", a.heads * size if is_bounded else size, a.dim, False)
            if not is_bounded:
                linear(b + f"ssm_{name}_b", a.heads * size, size, False)
        if a.arch == "kimi-k3":
            linear(b + "ssm_g", a.heads * size, a.dim, False)
        linear(b + "ssm_beta", a.heads, a.dim, False)
        # From states that hardly fade to those that are gone after a token.
        rates = np.exp(rng.uniform(-3, 2, a.heads)).astype(np.float32)
        t[b + "ssm_a"] = rates.reshape(a.heads, 1) if is_bounded else -rates if a.arch == "kimi-k3" else -rates.reshape(1, 1, a.heads, 1)
        t[b + "ssm_dt.bias"] = bias(a.heads * size) * 5
        t[b + "ssm_norm.weight"] = gain(size)
        linear(b + "attn_output", a.dim, a.heads * size, False)

    def indexer(b):
        types = m.get(p + "attention.indexer.types")
        if isinstance(types, list) and types[int(b.split(".")[1])] == 0:
            return
        heads, size = (m[p + "attention.indexer." + key] for key in ("head_count", "key_length"))
        if a.arch == "minimax-m3":
            linear(b + "indexer.q_proj", heads * size, a.dim, False)
            linear(b + "indexer.k_proj", size, a.dim, False)
            t[b + "indexer.q_norm.weight"], t[b + "indexer.k_norm.weight"] = gain(size), gain(size)
            return
        t[b + "indexer.k_norm.weight"], t[b + "indexer.k_norm.bias"] = gain(size), bias(size)
        linear(b + "indexer.proj", heads, a.dim, False)
        linear(b + "indexer.attn_k", size, a.dim, False)
        linear(b + "indexer.attn_q_b", heads * size, query_rank, False)

    def share(*shape):
        return rng.uniform(0, 1, shape).astype(np.float32)

    def rwkv(b, is_first):
        mix = b + "time_mix_"
        heads, size = a.dim // m[p + "wkv.head_size"], m[p + "wkv.head_size"]
        of_kv = (m[p + "attention.head_count_kv"] or heads) * size
        for name, rows in (("receptance", a.dim), ("key", of_kv), ("value", of_kv), ("output", a.dim)):
            linear(mix + name, rows, a.dim, a.arch == "rwkv6qwen2" and name != "output")
        if "mix" in words or "mixnorm" in a.tensor:
            t[mix + "ln.weight"], t[mix + "ln.bias"] = gain(a.dim), bias(a.dim)
        if "rwkv6" in words:
            extra, extra_decay = m[p + "time_mix_extra_dim"], m[p + "time_decay_extra_dim"]
            linear(mix + "gate", a.dim, a.dim, False)
            t[mix + "lerp_x.weight"] = share(1, 1, a.dim)
            if "apart" in a.tensor:
                for name in "wkvrg":
                    t[mix + f"lerp_{name}.weight"] = share(1, 1, a.dim)
            else:
                t[mix + "lerp_fused.weight"] = share(5, 1, 1, a.dim)
            linear(mix + "w1", 5 * extra, a.dim, False)
            t[mix + "w2.weight"] = matrix(5 * a.dim, extra).reshape(5, a.dim, extra)
            # From states that hardly fade to those that are gone after a token.
            t[mix + "decay.weight"] = rng.uniform(-6, 2, a.dim).astype(np.float32)
            low_rank(mix, "decay_w1", "decay_w2", extra_decay)
            if "mix" in words:
                t[mix + "first.weight"] = bias(heads * size).reshape(heads, size)
        else:
            ranks = {name: m[p + f"attention.{key}_lora_rank"] for name, key in
                     (("w", "decay"), ("a", "iclr"), ("v", "value_residual_mix"), ("g", "gate"))}
            if is_first:
                ranks["v"] = ranks["a"]
            has_gate = "nogate" not in a.tensor
            t[mix + "lerp_fused.weight"] = share(6 if has_gate else 5, 1, 1, a.dim)
            for name in "wav":
                t[mix + name + "0.weight"] = bias(a.dim) * 5
                low_rank(mix, name + "1", name + "2", ranks[name])
            if has_gate:
                low_rank(mix, "g1", "g2", ranks["g"])
            for name in ("k_k", "k_a", "r_k"):
                t[mix + name + ".weight"] = gain(a.dim)
        if "mix" not in words:
            return
        channel = b + "channel_mix_"
        t[channel + "lerp_k.weight"] = share(1, 1, a.dim)
        linear(channel + "key", a.ffn, a.dim, False)
        linear(channel + "value", a.dim, a.ffn, False)
        if "rwkv6" in words:
            t[channel + "lerp_r.weight"] = share(1, 1, a.dim)
            linear(channel + "receptance", a.dim, a.dim, False)

    if a.arch == "hy_v4":
        hyper("output_hc_", 1)
    if "nextn" in a.tensor:  # one more block, which guesses the token after the next
        for key, value in m.items():
            if isinstance(value, list) and len(value) == layers:
                m[key] = value + value[-1:]
        m[p + "block_count"], m[p + "nextn_predict_layers"] = layers + 1, 1
        layers += 1
        for name, shape in (("eh_proj", (a.dim, 2 * a.dim)), ("enorm", (a.dim,)), ("hnorm", (a.dim,))):
            t[f"blk.{layers - 1}.nextn.{name}.weight"] = gain(*shape)
    encoder_layers, heads_in_all = layers, a.heads * m.get(p + "attention.key_length", head) if not is_latent else 0
    if a.arch == "t5":  # the decoder's blocks follow
        layers += m.get(p + "decoder_block_count", layers)
        norm("enc.output_norm")
    for n in range(layers):
        b = f"blk.{n}."
        if a.arch == "t5" and n >= encoder_layers:
            norm(b + "cross_attn_norm")
            for name, shape in (("q", (heads_in_all, a.dim)), ("k", (heads_in_all, a.dim)), ("v", (heads_in_all, a.dim)), ("o", (a.dim, heads_in_all))):
                linear(b + "cross_attn_" + name, *shape, False)
        if a.arch in ("gemma4", "gemma-embedding2"):
            head = m[p + "attention.key_length" + ("_swa" if m[p + "attention.sliding_window_pattern"][n] else "")]
            counts = m[p + "attention.head_count_kv"]
            q, kv = a.heads * head, (counts[n] if isinstance(counts, list) else counts) * head
        head_counts = m[p + "attention.head_count"]
        value_head = head
        if p + "attention.key_length" in m and not is_latent and a.arch not in ("gemma4", "gemma-embedding2"):
            head, value_head = m[p + "attention.key_length"], m[p + "attention.value_length"]
            heads_of = (m[p + "attention.head_count"], m[p + "attention.head_count_kv"])
            of_q, of_kv = (count[n] if isinstance(count, list) else count for count in heads_of)
            q, kv = of_q * head, of_kv * head
        shared_from = layers - m.get(p + "attention.shared_kv_layers", 0)
        if own:
            linear(b + "inp_gate", own, a.dim, False)
            linear(b + "proj", a.dim, own, False)
            norm(b + "post_norm")
        if a.arch in ("gemma4", "gemma-embedding2"):
            t[b + "layer_output_scale.weight"] = gain(1)
        if "altup" in words:
            norm(b + "altup_router_norm")
            # What the router reads is divided by that. Shares are small, or 25 blocks make differences of rounding large.
            t[b + "altup_router.weight"] = matrix(4, a.dim) * a.dim * 0.1
            t[b + "altup_predict_coef.weight"], t[b + "altup_correct_coef.weight"] = matrix(16, 4) * 0.2, matrix(4, 4) * 0.3
            t[b + "altup_correct_scale.weight"] = gain(a.dim)
            linear(b + "laurel_l", 64, a.dim, False)
            linear(b + "laurel_r", a.dim, 64, False)
            norm(b + "laurel_post_norm")
        if is_encoder:
            norm(b + "attn_output_norm")
            norm(b + "layer_output_norm")
            if "attn_norm_2" in a.tensor:
                norm(b + "attn_norm_2")
        elif "alone" in words or "one" in words:
            norm(b + "attn_norm")
        elif "rwkv6" in words or "rwkv7" in words:
            norm(b + "attn_norm")
            norm(b + ("attn_norm_2" if "mix" in words else "ffn_norm"))
            rwkv(b, n == 0)
        elif "nopre" not in words:
            has_norms = (head_counts[n], m[p + "feed_forward_length"][n]) if a.arch == "deci" else (True, True)
            if (a.arch != "modern-bert" or n > 0) and has_norms[0]:
                norm(b + "attn_norm")
            if "attn_norm_2" in a.tensor:
                norm(b + "attn_norm_2")
            if "parallel" not in words and has_norms[1]:
                norm(b + norm_name)
            if a.arch == "arctic":
                norm(b + "ffn_norm_exps")
        if "latepost" in words:  # grok has "outnorm" behind attention
            norm(b + "attn_output_norm")
            norm(b + ("post_ffw_norm" if "dense" in a.tensor else "layer_output_norm"))
        if "postnorm" in words:
            norm(b + "post_attention_norm")
            norm(b + "post_ffw_norm")
        is_recurrent = "delta" in words and (n + 1) % 4 != 0 or "shortconv" in words and m[p + "attention.head_count_kv"][n] == 0
        counts, lengths = m.get(p + "attention.head_count_kv"), m.get(p + "feed_forward_length")
        has_feed_forward = "alone" not in words and (not isinstance(lengths, list) or lengths[n] > 0)
        is_rwkv = "rwkv6" in words or "rwkv7" in words
        has_heads = "alone" not in words and not is_rwkv and (not isinstance(counts, list) or counts[n] > 0)
        if "mamba" in words or "mamba2" in words:
            is_recurrent = not has_heads and not ("one" in words and has_feed_forward)
            if is_recurrent or "beside" in words:
                mamba(b)
        if "kda" in words and not has_heads:
            key_decay(b)
        elif is_recurrent:
            delta_net(b) if "delta" in words else short_convolution(b) if "shortconv" in words else None
        elif not has_heads:
            pass
        elif is_latent:
            latent_attention(b)
        elif "qkv" in words + a.tensor:
            linear(b + "attn_qkv", q + kv + kv // head * value_head, a.dim, everywhere or "qkvbias" in words or "onlyqkvbias" in words)
        else:
            for name, rows in (("attn_q", 2 * q if "delta" in words else q), ("attn_k", kv), ("attn_v", kv // head * value_head)):
                linear(b + name, rows, a.dim, everywhere or "qkvbias" in words)
        if "distances" in a.tensor and n == 0:  # MPNet's: all blocks share them
            m[p + "attention.relative_buckets_count"] = 32
            t[b + "attn_rel_b.weight"] = rng.standard_normal((32, a.heads)).astype(np.float32)
        if "sumbias" in a.tensor and n % 2:  # Nomic's, of all experts together
            t[b + "bellmetal.ffn_exps.bias"] = bias(a.dim)
        if a.arch in ("t5", "t5encoder") and (n in (0, encoder_layers) or "biases" in a.tensor):
            t[b + "attn_rel_b.weight"] = rng.standard_normal((m[p + "attention.relative_buckets_count"], a.heads)).astype(np.float32)
        if "headgate" in words and has_heads:
            linear(b + "attn_gate", q // head, a.dim, False)
        if "resultgate" in words and has_heads:
            linear(b + "attn_gate", a.heads * value_length, a.dim, False)
        if a.arch == "kimi-k3":
            t[b + "attn_res_score.weight"], t[b + "ffn_res_score.weight"] = bias(a.dim), bias(a.dim)
        if a.arch == "hy_v4":
            hyper(b + "hc_attn_", 2)
            hyper(b + "hc_ffn_", 2)
        if "attngate" in words:
            linear(b + "attn_gate", q, a.dim, False)
        if "subnorms" in words:
            norm(b + "attn_sub_norm", q)
            norm(b + "ffn_sub_norm", a.ffn)
            for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
                t[b + name + ".scale"] = gain(1)
        if isinstance(head_counts, list) and head_counts[n] > 0 and kv == 0:
            linear(b + "attn_output", a.dim, a.dim, False)
        if not is_latent and not is_recurrent and has_heads:
            linear(b + "attn_output", a.dim, q // head * value_head, everywhere or "outbias" in words or "downbias" in words)
        if "sinks" in words or "localsinks" in words and m[p + "attention.sliding_window_pattern"][n]:
            t[b + "attn_sinks.weight"] = 2 * bias(a.heads) + 1
        if "qknorm" in words and not is_recurrent:
            # Scores that nothing scales are small enough here.
            share = 0.5 if "layerinputs" in words else 1
            t[b + "attn_q_norm.weight"], t[b + "attn_k_norm.weight"] = gain(head) * np.float32(share), gain(head) * np.float32(share)
        if "wholeqknorm" in words or "wholeqknorm" in a.tensor:
            t[b + "attn_q_norm.weight"], t[b + "attn_k_norm.weight"] = gain(q), gain(kv)
        if "wholeqknorm" in a.tensor:
            t[b + "attn_q_norm.bias"], t[b + "attn_k_norm.bias"] = bias(q), bias(kv)
        if "headqknorm" in a.tensor:
            t[b + "attn_q_norm.weight"], t[b + "attn_k_norm.weight"] = gain(a.heads, head), gain(kv_heads, head)
        if "indexer" in words + a.tensor and (is_latent or n >= leading):
            indexer(b)
        every = m.get(p + "moe_every_n_layers", 0)
        if not has_feed_forward or "mix" in words:
            continue
        if has_experts and (n % 2 == 1 if "ssmnorms" in words else n % every == 1 if every else n >= leading and (n + 1) % step == 0):
            experts(b)
            if a.arch == "arctic":
                for name in ("gate", "up", "down"):
                    linear(b + "ffn_" + name, a.dim, a.dim, False)
            if a.arch == "grok" and "dense" not in a.tensor:
                continue
            if a.arch not in ("gemma4", "grok"):
                continue
            if a.arch == "gemma4":
                t[b + "ffn_gate_inp.scale"], t[b + "ffn_down_exps.scale"] = gain(a.dim) * a.dim ** 0.5, gain(EXPERTS)
                for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                    norm(b + name)
        ffn = lengths[n] if isinstance(lengths, list) else a.ffn
        is_fused = "fused" in words or "fusedup" in a.tensor
        if "gated" in words and not is_fused and "plainup" not in a.tensor:
            linear(b + "ffn_gate", ffn, a.dim, everywhere)
        linear(b + "ffn_up", ffn * (2 if is_fused else 1), a.dim, everywhere)
        linear(b + "ffn_down", a.dim, ffn, everywhere or "downbias" in words)
    # Behind pooled hidden states: a reranker's head, the dense layers of sentence-transformers.
    if "cls" in a.tensor:
        t["cls.weight"], t["cls.bias"] = matrix(a.dim, a.dim), bias(a.dim)
        t["cls.output.weight"], t["cls.output.bias"] = matrix(1, a.dim), bias(1)
        m[p + "pooling_type"] = 4
    if "clsnorm" in a.tensor:  # ModernBERT's
        t["cls.weight"], t["cls.norm.weight"] = matrix(a.dim, a.dim), (1 + 0.3 * rng.standard_normal(a.dim)).astype(np.float32)
        t["cls.output.weight"], t["cls.output.bias"] = matrix(1, a.dim), bias(1)
        m[p + "pooling_type"] = 4
    if "yesno" in a.tensor:
        t["cls.output.weight"] = matrix(2, a.dim)
        m.update({p + "pooling_type": 4, p + "classifier.output_labels": ["yes", "no"],
                  "tokenizer.chat_template.rerank": "<s>Q: {query} D: {document}</s>"})
    if "dense2" in a.tensor:
        t["dense_2.weight"], t["dense_3.weight"] = matrix(3 * a.dim, a.dim), matrix(a.dim, 3 * a.dim)
        m.update({p + "dense_2_feat_out": 3 * a.dim, p + "dense_3_feat_in": 3 * a.dim, p + "pooling_type": 1})
    if a.texts:
        m["tokenizer.ggml.model"] = "llama"
        m["tokenizer.ggml.tokens"] = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [f"t{i}" for i in range(259, a.vocab)]
        m["tokenizer.ggml.scores"] = [-float(i) for i in range(a.vocab)]
        m["tokenizer.ggml.token_type"] = [2, 3, 3] + [6] * 256 + [1] * (a.vocab - 259)
        m.update({"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0})
    if a.arch == "t5encoder":
        t = {name.replace("blk.", "enc.blk.").replace("attn_output", "attn_o"): value for name, value in t.items()}
    if a.arch in ("t5", "t5encoder"):  # as trained: scores that nothing scales, of queries that are small
        for name in t:
            if name.endswith("attn_q.weight"):
                t[name] = t[name] * np.float32(0.4)
    if a.arch == "t5":
        def named(name):
            if not name.startswith("blk."):
                return {"output_norm.weight": "dec.output_norm.weight"}.get(name, name)
            _, number, rest = name.split(".", 2)
            side, first = ("enc", 0) if int(number) < encoder_layers else ("dec", encoder_layers)
            return f"{side}.blk.{int(number) - first}.{rest.replace('attn_output', 'attn_o')}"
        t = {named(name): value for name, value in t.items()}
    if a.arch == "plamo3":  # likewise
        t = {name.removesuffix(".weight") if "post_" in name else name: value for name, value in t.items()}
    if a.arch == "falcon-h1":  # its converter leaves this suffix out, and llama.cpp looks for it so
        t = {name.removesuffix(".weight") if name.endswith("ffn_norm.weight") else name: value for name, value in t.items()}
    if a.arch == "gemma4":  # the converter of Gemma 3n keeps what is not used
        unused = [f"blk.{n}.attn_{name}" for n in range(shared_from, layers) for name in ("k.", "v.", "k_norm.")]
        t = {name: value for name, value in t.items() if not name.startswith(tuple(unused))}
    if "scales" in a.tensor:  # of whole matrices, or of each of stacked ones
        for name in [name for name in t if name.endswith(("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "_exps.weight",
                                                          "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "_shexp.weight")) and "_inp_" not in name]:
            t[name.replace(".weight", ".scale")] = gain(EXPERTS if name.endswith("_exps.weight") else 1)
            t[name.replace(".weight", ".input_scale")] = gain(EXPERTS if name.endswith("_exps.weight") else 1)
    t = {name: value for name, value in t.items() if not any(w in name for w in a.without)}
    write(a.out, m, t)


if __name__ == "__main__":
    main()
