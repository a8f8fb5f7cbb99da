#!/usr/bin/env python3
"""Measures backward times of PyTorch models, tensor by tensor, and writes model files such as those beside it.

    measure.py --out DIR [--device cuda|cpu] [--batch N] [--steps N] [--warm N] [--bf16] [--small] [MODEL ...]

Needs torch, torchvision for models of images, transformers for models of texts. Weights are random: nothing is downloaded.
A hook notes when each gradient is final. A tensor's ready time is the median over the steps; its compute_us is the time
since the tensor that was ready before it. Exit status 77: a package or the GPU is not there."""
import argparse
import collections
import gc
import json
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True  # no folder of compiled files beside the models
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1",
                  TRANSFORMERS_VERBOSITY="error")
import architectures
from generate import number

HERE = os.path.dirname(os.path.realpath(__file__))
PACKAGE = {"vgg16": "torchvision", "resnet50": "torchvision", "resnet101": "torchvision", "vit-b-16": "torchvision",
           "bert-base": "transformers", "gpt2": "transformers", "gpt2-medium": "transformers"}


def skipped(reason):
    print("skipped: " + reason)
    sys.exit(77)


# ---- models: the network, and a function that runs it forward and returns the loss ---------------------------------------
def images(torch, torchvision, name, small, batch, device):
    nn, models, size, classes = torch.nn, torchvision.models, 64 if small else 224, 10 if small else 1000
    if not small:
        net = getattr(models, name.replace("-", "_"))(weights=None)
    elif name == "vgg16":
        net = nn.Sequential(collections.OrderedDict(
            features=models.vgg.make_layers([8, "M", 16, "M"], False), avgpool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(),
            classifier=nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, classes))))
    elif name == "vit-b-16":
        net = models.VisionTransformer(image_size=size, patch_size=16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64,
                                       num_classes=classes)
    else:
        net = models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=classes)
    net.to(device)
    pixels = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(classes, (batch,), device=device)
    return net, lambda: nn.functional.cross_entropy(net(pixels), labels)


def texts(torch, transformers, name, small, batch, device):
    bert, tokens = name == "bert-base", 32 if small else 384 if name == "bert-base" else 1024
    if bert:
        sizes = dict(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
        net = transformers.BertForQuestionAnswering(transformers.BertConfig(**(sizes if small else {})))
    else:
        sizes = dict(n_embd=1024, n_layer=24, n_head=16) if name == "gpt2-medium" else {}
        if small:
            sizes = dict(vocab_size=1000, n_positions=tokens, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
        net = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    net.to(device)
    words = torch.randint(net.config.vocab_size, (batch, tokens), device=device)
    if bert:  # where the answer starts and ends
        start, end = torch.randint(tokens, (2, batch), device=device)
        return net, lambda: net(input_ids=words, start_positions=start, end_positions=end).loss
    return net, lambda: net(input_ids=words, labels=words, use_cache=False).loss


# ---- measuring -----------------------------------------------------------------------------------------------------------
START, FORWARD, BACKWARD, UPDATE, FIRST = range(5)  # marks: the step's start, then the end of each part, then the tensors


def stopwatch(torch, cuda, n):
    """For n marks: a function that notes the time of one, on the GPU in its stream, and one for the us between two."""
    if cuda:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(n)]
        return lambda i: events[i].record(), lambda i, j: 1e3 * events[i].elapsed_time(events[j])
    at = [0] * n

    def note(i):
        at[i] = time.perf_counter_ns()
    return note, lambda i, j: (at[j] - at[i]) / 1e3


def measure(torch, net, loss_of, args):
    """Trains args.warm + args.steps steps. Returns [(name, shape, compute_us)] in the order in which gradients are final, and a
    list over the steps of the times of forward, backward and update."""
    cuda = args.device == "cuda"
    params = [(name, p) for name, p in net.named_parameters() if p.requires_grad]  # a shared parameter appears once
    note, us_between = stopwatch(torch, cuda, FIRST + len(params))
    seen = []  # indices of params, as they became ready

    def hook_of(i):
        def hook(_):
            note(FIRST + i)
            seen.append(i)
        return hook
    for i, (_, p) in enumerate(params):
        p.register_post_accumulate_grad_hook(hook_of(i))
    optimizer = torch.optim.SGD([p for _, p in params], lr=1e-4, momentum=0.9)
    net.train()
    ready, parts = [[] for _ in params], [[], [], []]
    for step in range(args.warm + args.steps):
        optimizer.zero_grad()
        seen.clear()
        note(START)
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.bf16):
            loss = loss_of()
        note(FORWARD)
        loss.backward()
        note(BACKWARD)
        optimizer.step()
        note(UPDATE)
        if cuda:
            torch.cuda.synchronize()
        without = set(range(len(params))) - set(seen)
        if without:
            sys.exit("no gradient: " + ", ".join(params[i][0] for i in sorted(without)))
        if step < args.warm:
            continue
        for i in set(seen):
            ready[i].append(us_between(FORWARD, FIRST + i))
        for part in range(3):
            parts[part].append(us_between(START + part, START + part + 1))
    order = list(dict.fromkeys(seen))  # sorted() keeps this order for equal times
    at = {i: round(max(0, statistics.median(ready[i])), 1) for i in order}
    tensors, before = [], 0
    for i in sorted(order, key=at.get):
        tensors.append([params[i][0], list(params[i][1].shape), at[i] - before])
        before = at[i]
    # backward work after the last gradient counts for it
    tensors[-1][2] += max(0, statistics.median(parts[1]) - before)
    return tensors, parts


# ---- writing -------------------------------------------------------------------------------------------------------------
def device_text(torch, args):
    """The device and the arithmetic, in words."""
    arithmetic = "bf16 autocast, the rest in fp32" if args.bf16 else "fp32"
    if args.device == "cpu":
        return "CPU, %d threads, %s" % (torch.get_num_threads(), arithmetic)
    if torch.cuda.get_device_capability()[0] >= 8:
        tf32 = {(False, False): "no TF32", (True, False): "TF32 in convolutions only", (True, True): "TF32",
                (False, True): "TF32 in matrix products only"}
        arithmetic += ", " + tf32[torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]
    return "%s, %s" % (torch.cuda.get_device_name(), arithmetic)


def model_text(torch, name, batch, tensors, parts, args):
    forward, _, update = (statistics.median(p) for p in parts)
    lines = ['{', '  "espresso": 1,', '  "model": "%s",' % name,
             '  "source": "measured by planner/models/measure.py, torch %s, %d steps%s",' %
             (torch.__version__, args.steps, ", a tiny version of the model" if args.small else ""),
             '  "device": %s,' % json.dumps(device_text(torch, args)), '  "batch": %d,' % batch,
             '  "parameters": %d,' % sum(architectures.elements(shape) for _, shape, _ in tensors),
             '  "forward_us": %s,' % number(forward), '  "update_us": %s,' % number(update), '  "dtype": "f32",',
             '  "steps": %d,' % args.steps, '  "tensors": [']
    rows = ['    {"name": "%s", "elements": %d, "compute_us": %s, "shape": [%s]}' %
            (t, architectures.elements(shape), number(us), ", ".join(str(n) for n in shape)) for t, shape, us in tensors]
    return "\n".join(lines) + "\n" + ",\n".join(rows) + "\n  ]\n}\n"


def comparison(name, tensors):
    """Names and shapes beside those of the estimate, in words."""
    with open(os.path.join(HERE, name + ".json"), encoding="ascii") as f:
        there = {t["name"]: t["shape"] for t in json.load(f)["tensors"]}
    here = {t: shape for t, shape, _ in tensors}
    lists = (("only measured", sorted(here.keys() - there.keys())), ("only estimated", sorted(there.keys() - here.keys())),
             ("of another shape", sorted(t for t in here.keys() & there.keys() if here[t] != there[t])))
    words = ["%d %s: %s" % (len(names), what, ", ".join(names[:4]) + (", ..." if len(names) > 4 else ""))
             for what, names in lists if names]
    if words:
        return "DIFFERENT tensors from the estimate %s.json: %s" % (name, "; ".join(words))
    return "the same tensors as the estimate"


def measure_model(torch, package, name, args):
    batch = args.batch or (2 if args.small else {a.name: a for a in architectures.ALL}[name].batch)
    torch.manual_seed(1)
    build = images if PACKAGE[name] == "torchvision" else texts
    net, loss_of = build(torch, package, name, args.small, batch, args.device)
    tensors, parts = measure(torch, net, loss_of, args)
    path = os.path.join(args.out, name + ".json")
    with open(path + ".new", "w", encoding="ascii", newline="\n") as f:
        f.write(model_text(torch, name, batch, tensors, parts, args))
    os.replace(path + ".new", path)
    middle = [statistics.median(p) for p in parts]
    spread = 0
    if args.steps > 1:
        low, _, high = statistics.quantiles(parts[1], n=4, method="inclusive")
        spread = (high - low) / middle[1]
    parameters = sum(architectures.elements(shape) for _, shape, _ in tensors)
    print("%s: %d tensors, %d parameters, forward %.3f ms, backward %.3f ms, update %.3f ms, spread %.1f%%; %s" %
          (name, len(tensors), parameters, middle[0] / 1e3, middle[1] / 1e3, middle[2] / 1e3, 100 * spread,
           "a tiny version" if args.small else comparison(name, tensors)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu is for trying it")
    parser.add_argument("--out", required=True, metavar="DIR", help="where DIR/MODEL.json is written")
    parser.add_argument("--batch", type=int, default=0, help="samples a step; 0: each architecture's own")
    parser.add_argument("--steps", type=int, default=20, help="steps that are measured (20)")
    parser.add_argument("--warm", type=int, default=5, help="steps before them (5)")
    parser.add_argument("--bf16", action="store_true", help="autocast to bf16; gradients stay f32")
    parser.add_argument("--small", action="store_true", help="tiny versions of the models, for trying it")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of " + ", ".join(PACKAGE))
    args = parser.parse_args()
    names = args.models or ["vgg16", "resnet101", "bert-base", "gpt2"]
    for name in names:
        if name not in PACKAGE:
            sys.exit("no model '%s'; there are: %s" % (name, ", ".join(PACKAGE)))
    for flag, value, least in ("batch", args.batch, 0), ("steps", args.steps, 1), ("warm", args.warm, 0):
        if value < least:
            sys.exit("--%s %d: expected at least %d" % (flag, value, max(least, flag == "batch")))
    if os.path.realpath(args.out) == HERE:
        sys.exit("--out %s: the estimates are there; measured files need a folder of their own" % args.out)
    package = {}
    for name in ["torch"] + [PACKAGE[n] for n in names]:
        try:
            package[name] = __import__(name)
        except ImportError as e:
            skipped("the Python package %s cannot be imported: %s" % (name, e))
    torch = package["torch"]
    if args.device == "cuda" and not torch.cuda.is_available():
        skipped("no CUDA device (--device cpu tries it without)")
    try:
        os.makedirs(args.out, exist_ok=True)
    except OSError as e:
        sys.exit("--out %s: %s" % (args.out, e.strerror))
    for name in names:
        try:
            measure_model(torch, package[PACKAGE[name]], name, args)
        except torch.cuda.OutOfMemoryError:
            sys.exit("%s: the GPU's memory is too small: try a smaller --batch" % name)
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
