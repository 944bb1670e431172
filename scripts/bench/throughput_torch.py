#!/usr/bin/env python3
"""PyTorch's side of `throughput`: Qwen3 shapes with random weights, LoRA of rank 16 on all linear layers, bf16, NF4 where
bitsandbytes is installed. Rollouts by transformers' generate, training by one forward and backward pass.

    scripts/bench/throughput_torch.py [--shapes 0.6b,4b,8b] [--rows 32] [--prompt 64] [--completion 64] [--device cuda]
"""

import argparse
import json
import time

SHAPES = {
    "tiny": (256, 1024, 2, 8, 4, 32, 512, True),
    "0.6b": (1024, 3072, 28, 16, 8, 128, 151936, True),
    "4b": (2560, 9728, 36, 32, 8, 128, 151936, True),
    "8b": (4096, 12288, 36, 32, 8, 128, 151936, False),
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="0.6b,4b,8b")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=90)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    began = time.monotonic()
    for shape in args.shapes.split(","):
        if time.monotonic() - began > args.limit:
            print(f"{shape}: not started, {args.limit} s are over")
            continue
        print(json.dumps(measure(shape, args)), flush=True)


def measure(shape, args):
    import torch
    from peft import LoraConfig, get_peft_model

    model, held = build(shape, args)
    ids = torch.randint(3, 500, (1, args.prompt), device=args.device).repeat(args.rows, 1)
    whole = torch.randint(3, 500, (args.rows, args.prompt + args.completion), device=args.device)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM"))

    def rollout():
        with torch.no_grad():
            made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.completion,
                                  min_new_tokens=args.completion, do_sample=True, top_k=0, top_p=1.0, pad_token_id=0,
                                  eos_token_id=None)
        assert made.shape[1] == args.prompt + args.completion

    def training():
        model.zero_grad(set_to_none=True)
        hidden = model.get_base_model().model(input_ids=whole).last_hidden_state[:, args.prompt - 1 : -1]
        logits = model.get_base_model().lm_head(hidden).float()
        wanted = whole[:, args.prompt :]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()).backward()

    return dict(shape=shape, weights=held, rollout_tok_s=args.rows * args.completion / best(rollout, args),
                train_tok_s=args.rows * (args.prompt + args.completion) / best(training, args))


def build(shape, args):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden, mlp, layers, heads, kv, dim, vocabulary, tied = SHAPES[shape]
    config = Qwen3Config(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim, tie_word_embeddings=tied,
                         max_position_embeddings=40960, eos_token_id=None,
                         rope_parameters=dict(rope_type="default", rope_theta=1e6))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(args.device):
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    try:
        import bitsandbytes as bnb
    except ImportError:
        return model, "bf16"
    for name, module in list(model.named_modules()):
        if name.split(".")[-1] in TARGETS:
            quantised = bnb.nn.Linear4bit(module.in_features, module.out_features, bias=False, quant_type="nf4",
                                          compute_dtype=torch.bfloat16, compress_statistics=True)
            quantised.weight = bnb.nn.Params4bit(module.weight.data.cpu(), requires_grad=False, quant_type="nf4",
                                                 compress_statistics=True)
            parent = model.get_submodule(name.rsplit(".", 1)[0])
            setattr(parent, name.split(".")[-1], quantised.to(args.device))
    return model, "nf4"


def best(run, args):
    import torch

    wait = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    run()
    wait()
    shortest = float("inf")
    for _ in range(args.repeat):
        began = time.monotonic()
        run()
        wait()
        shortest = min(shortest, time.monotonic() - began)
    return shortest


if __name__ == "__main__":
    main()
