# SPDX-License-Identifier: MIT
"""Blocks of RWKV 6 and 7 in PyTorch, the recurrences token by token as their papers write them.

Part of llama_reference.py: `model` is its Llama.
"""

import torch

GROUP_EPSILON = 64e-5


def shifted(x):
    """The token before each; nothing before the first."""
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]])


def head_norm(model, y, mix):
    """Of every head alone; y [tokens, heads, length]."""
    if mix + "ln.weight" not in model.w:
        return y.flatten(1)
    y = (y - y.mean(-1, keepdim=True)) / torch.sqrt(y.var(-1, unbiased=False, keepdim=True) + GROUP_EPSILON)
    return y.flatten(1) * model.w[mix + "ln.weight"] + model.w[mix + "ln.bias"]


def mix6(model, x, mix):
    size = model.meta("wkv.head_size")
    before = shifted(x) - x
    w = {name: model.w.get(mix + name + ".weight") for name in ("lerp_fused", "lerp_x", "w2", "first", "decay")}
    told = torch.tanh(model.linear(x + before * w["lerp_x"].flatten(), mix + "w1")).view(len(x), 5, -1)
    apart = [mix + f"lerp_{name}.weight" for name in "wkvrg"]
    shares = torch.stack([model.w[name].flatten() for name in apart]) if w["lerp_fused"] is None else w["lerp_fused"].view(5, -1)
    for_w, for_k, for_v, for_r, for_g = (x + before * (shares[i] + told[:, i] @ w["w2"][i].T) for i in range(5))

    def heads(t):
        t = t.view(len(x), -1, size)
        return t.repeat_interleave(x.shape[1] // size // t.shape[1], 1)

    r, k, v = heads(model.linear(for_r, mix + "receptance")), heads(model.linear(for_k, mix + "key")), heads(model.linear(for_v, mix + "value"))
    decay = torch.exp(-torch.exp(model.linear(torch.tanh(model.linear(for_w, mix + "decay_w1")), mix + "decay_w2") + w["decay"]))
    decay, gate = heads(decay), model.linear(for_g, mix + "gate")
    bonus, gate = w["first"], torch.sigmoid(gate) if w["first"] is None else gate * torch.sigmoid(gate)
    if bonus is None:
        k, r = k * (1 - decay), r * size ** -0.5
    state, out = x.new_zeros(r.shape[1], size, size), []
    for t in range(len(x)):
        written = torch.einsum("hv,hk->hvk", v[t], k[t])
        if bonus is not None:
            out.append(torch.einsum("hvk,hk->hv", state + bonus[:, None, :] * written, r[t]))
        state = state * decay[t][:, None, :] + written
        if bonus is None:
            out.append(torch.einsum("hvk,hk->hv", state, r[t]))
    return model.linear(head_norm(model, torch.stack(out), mix) * gate, mix + "output")


def mix7(model, x, mix):
    size = model.meta("wkv.head_size")
    shares = model.w[mix + "lerp_fused.weight"].flatten(0, 2)
    for_r, for_w, for_k, for_v, for_a, *for_g = (x + (shifted(x) - x) * share for share in shares)

    def low_rank(t, name, act=lambda y: y):
        return model.linear(act(model.linear(t, mix + name + "1")), mix + name + "2") + model.w.get(mix + name + "0.weight", 0)

    def heads(t):
        return t.view(len(x), -1, size)

    r, k, v = (model.linear(t, mix + name) for t, name in ((for_r, "receptance"), (for_k, "key"), (for_v, "value")))
    decay = torch.exp(-torch.exp(torch.tensor(-0.5, dtype=x.dtype)) * torch.sigmoid(low_rank(for_w, "w", torch.tanh)))
    if "values" in model.kept:
        v = v + (model.kept["values"] - v) * torch.sigmoid(low_rank(for_v, "v"))
    else:
        model.kept["values"] = v
    rate = torch.sigmoid(low_rank(for_a, "a"))
    removed = heads(k * model.w[mix + "k_k.weight"])
    removed = removed / torch.sqrt((removed * removed).sum(-1, keepdim=True)).clamp(min=1e-12)
    k = k * (1 + (rate - 1) * model.w[mix + "k_a.weight"])
    r, k, v, decay, rate = heads(r), heads(k), heads(v), heads(decay), heads(rate)
    state, out = x.new_zeros(r.shape[1], size, size), []
    for t in range(len(x)):
        seen = torch.einsum("hvk,hk->hv", state, -removed[t])
        state = state * decay[t][:, None, :] + torch.einsum("hv,hk->hvk", seen, removed[t] * rate[t]) + torch.einsum("hv,hk->hvk", v[t], k[t])
        out.append(torch.einsum("hvk,hk->hv", state, r[t]))
    y = head_norm(model, torch.stack(out), mix)
    y = y + ((r * k * heads(model.w[mix + "r_k.weight"].expand(len(x), -1))).sum(-1, keepdim=True) * v).flatten(1)
    if for_g:
        y = y * low_rank(for_g[0], "g", torch.sigmoid)
    return model.linear(y, mix + "output")


def channel_mix(model, x, channel):
    before = shifted(x) - x
    hidden = torch.relu(model.linear(x + before * model.w[channel + "lerp_k.weight"].flatten(), channel + "key")) ** 2
    y = model.linear(hidden, channel + "value")
    if channel + "receptance.weight" not in model.w:
        return y
    return y * torch.sigmoid(model.linear(x + before * model.w[channel + "lerp_r.weight"].flatten(), channel + "receptance"))


def block(model, x, layer):
    p = f"blk.{layer}."
    mix = mix7 if "rwkv7" in model.arch else mix6
    x = x + mix(model, model.norm(x, p + "attn_norm"), p + "time_mix_")
    if p + "channel_mix_key.weight" in model.w:
        x = x + channel_mix(model, model.norm(x, p + "attn_norm_2"), p + "channel_mix_")
    else:
        x = x + model.dense(model.norm(x, p + "ffn_norm"), p)
    every = model.meta("rescale_every_n_layers", 0)
    return x / 2 if every and (layer + 1) % every == 0 else x
