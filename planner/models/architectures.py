"""The models as sequences of operations in forward order; backward runs them in reverse. Knows nothing of devices and files.

An operation counts floating-point operations (a multiply and an add are two) and bytes of memory (f32). Backward of a dense
operation is one for its input and one for its weights; in frameworks both belong to one node, so that the bias is ready
first, then the weight. Names are those of the implementation that each architecture cites."""


class Work:
    def __init__(self, flops=0, bytes=0):
        self.flops, self.bytes = int(flops), int(bytes)


class Step:
    """A part of backward, and the parameter that is ready after it (or none)."""

    def __init__(self, work, name=None, shape=()):
        self.work, self.name, self.shape = work, name, tuple(shape)


def elements(shape):
    product = 1
    for n in shape:
        product *= n
    return product


class Net:
    def __init__(self):
        self.ops = []  # (forward work, backward steps)

    def add(self, forward, *backward):
        self.ops.append((forward, backward))

    def forward(self):
        return [f for f, _ in self.ops]

    def backward(self):
        return [step for _, steps in reversed(self.ops) for step in steps]

    def parameters(self):
        return sum(elements(step.shape) for step in self.backward() if step.name)

    # ---- operations ------------------------------------------------------------------------------------------------
    def dense(self, rows, n_in, n_out, name=None, shape=None, bias=None, first=False, per_weight=1, weights=None):
        """`rows` products with an n_in x n_out matrix. per_weight: how many of the matrix's inputs one element in memory serves
        (a convolution reads each element once for its whole window). first: the gradient of the input is not needed."""
        weights = n_in * n_out if weights is None else weights
        flops, data = 2 * rows * n_in * n_out, 4 * (rows * n_in // per_weight + weights + rows * n_out)
        steps = [Step(Work(0, 4 * rows * n_out), bias, (n_out,))] if bias else []
        steps.append(Step(Work(flops if first else 2 * flops, data if first else 2 * data), name, shape or ()))
        self.add(Work(flops, data), *steps)

    def linear(self, name, rows, n_in, n_out, bias=True):
        self.dense(rows, n_in, n_out, name + ".weight", (n_out, n_in), name + ".bias" if bias else None)

    def conv(self, name, batch, size, n_in, n_out, kernel, bias=True, first=False, weight="weight"):
        """size: rows and columns of the output."""
        self.dense(batch * size * size, n_in * kernel * kernel, n_out, "%s.%s" % (name, weight),
                   (n_out, n_in, kernel, kernel), name + ".bias" if bias else None, first, kernel * kernel)

    def norm(self, name, elements, channels, params=("weight", "bias"), shape=None):
        """Forward reads twice and writes; backward reads input and gradient twice and writes."""
        steps = [Step(Work(0, 20 * elements) if i == 0 else Work(), "%s.%s" % (name, p), shape or (channels,))
                 for i, p in enumerate(params)]
        self.add(Work(0, 12 * elements), *(steps or [Step(Work(0, 20 * elements))]))

    def pointwise(self, elements, times=1):
        """Activation, pooling, dropout, residual: reads and writes; backward reads two and writes."""
        self.add(Work(0, 8 * elements * times), Step(Work(0, 12 * elements * times)))

    def attention(self, batch, tokens, width, heads):
        """Scores, softmax and the sum of values: products without parameters."""
        scores = batch * heads * tokens * tokens
        flops, data = 2 * batch * tokens * tokens * width, 4 * (scores + 2 * batch * tokens * width)
        self.add(Work(flops, data), Step(Work(2 * flops, 2 * data)))
        self.pointwise(scores)
        self.add(Work(flops, data), Step(Work(2 * flops, 2 * data)))

    def embedding(self, name, rows, width, looked_up):
        """Backward clears a gradient of the whole table and adds the rows that were looked up."""
        self.add(Work(0, 8 * looked_up * width), Step(Work(0, 4 * rows * width + 12 * looked_up * width), name, (rows, width)))

    def lstm(self, name, batch, tokens, n_in, n_hidden):
        """All time steps as one operation; the four parameters are ready together."""
        rows = batch * tokens
        flops, data = 2 * rows * 4 * n_hidden * (n_in + n_hidden), 4 * rows * (n_in + 9 * n_hidden)
        # every time step reads the recurrent matrix again
        data += 4 * tokens * 4 * n_hidden * n_hidden
        steps = [Step(Work(2 * flops, 2 * data), name + ".weight_ih_l0", (4 * n_hidden, n_in)),
                 Step(Work(), name + ".weight_hh_l0", (4 * n_hidden, n_hidden)),
                 Step(Work(), name + ".bias_hh_l0", (4 * n_hidden,)), Step(Work(), name + ".bias_ih_l0", (4 * n_hidden,))]
        self.add(Work(flops, data), *steps)


class Architecture:
    def __init__(self, name, build, batch, parameters, update_bytes, source):
        self.name, self.build, self.batch, self.parameters = name, build, batch, parameters
        self.update_bytes, self.source = update_bytes, source


SGD, ADAM = 20, 28  # bytes per parameter: SGD with momentum reads 3 and writes 2 numbers, Adam 4 and 3


# ---- images -----------------------------------------------------------------------------------------------------------
def vgg16(batch):
    net, size, n_in, layer, first = Net(), 224, 3, 0, True
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if not width:
            net.pointwise(batch * size * size * n_in)
            size, layer = size // 2, layer + 1
            continue
        net.conv("features.%d" % layer, batch, size, n_in, width, 3, first=first)
        net.pointwise(batch * size * size * width)
        n_in, layer, first = width, layer + 2, False
    for layer, n_in, n_out in ((0, 25088, 4096), (3, 4096, 4096), (6, 4096, 1000)):
        net.linear("classifier.%d" % layer, batch, n_in, n_out)
        net.pointwise(batch * n_out, 2)
    return net


def resnet(blocks):
    def build(batch):
        net, n_in, size = Net(), 64, 56

        def conv_norm(conv, norm, size, n_in, n_out, kernel, active=True, first=False):
            net.conv(conv, batch, size, n_in, n_out, kernel, bias=False, first=first)
            net.norm(norm, batch * size * size * n_out, n_out)
            if active:
                net.pointwise(batch * size * size * n_out)

        conv_norm("conv1", "bn1", 112, 3, 64, 7, first=True)
        net.pointwise(batch * 112 * 112 * 64)
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for b in range(count):
                name, out = "layer%d.%d" % (stage + 1, b), size // 2 if stage and not b else size
                conv_norm(name + ".conv1", name + ".bn1", size, n_in, width, 1)  # the stride is in conv2 (version 1.5)
                conv_norm(name + ".conv2", name + ".bn2", out, width, width, 3)
                conv_norm(name + ".conv3", name + ".bn3", out, width, 4 * width, 1, active=False)
                if not b:
                    conv_norm(name + ".downsample.0", name + ".downsample.1", out, n_in, 4 * width, 1, active=False)
                net.pointwise(batch * out * out * 4 * width, 2)  # sum and ReLU
                n_in, size = 4 * width, out
        net.pointwise(batch * 49 * 2048)
        net.linear("fc", batch, 2048, 1000)
        return net
    return build


def vit_b_16(batch):
    net, width, tokens = Net(), 768, 197
    rows = batch * tokens
    net.conv("conv_proj", batch, 14, 3, width, 16, first=True)
    net.add(Work(0, 8 * batch * width), Step(Work(0, 8 * batch * width), "class_token", (1, 1, width)))
    net.add(Work(0, 12 * rows * width), Step(Work(0, 8 * rows * width), "encoder.pos_embedding", (1, tokens, width)))
    for k in range(12):
        name = "encoder.layers.encoder_layer_%d." % k
        net.norm(name + "ln_1", rows * width, width)
        net.dense(rows, width, 3 * width, name + "self_attention.in_proj_weight", (3 * width, width),
                  name + "self_attention.in_proj_bias")
        net.attention(batch, tokens, width, 12)
        net.linear(name + "self_attention.out_proj", rows, width, width)
        net.pointwise(rows * width)
        net.norm(name + "ln_2", rows * width, width)
        net.linear(name + "mlp.0", rows, width, 4 * width)
        net.pointwise(rows * 4 * width)
        net.linear(name + "mlp.3", rows, 4 * width, width)
        net.pointwise(rows * width)
    net.norm("encoder.ln", rows * width, width)
    net.linear("heads.head", batch, width, 1000)
    return net


# ---- words -------------------------------------------------------------------------------------------------------------
def bert_base(batch):
    net, width, tokens = Net(), 768, 384
    rows = batch * tokens
    net.embedding("bert.embeddings.word_embeddings.weight", 30522, width, rows)
    net.embedding("bert.embeddings.position_embeddings.weight", 512, width, rows)
    net.embedding("bert.embeddings.token_type_embeddings.weight", 2, width, rows)
    net.norm("bert.embeddings.LayerNorm", rows * width, width)
    net.pointwise(rows * width)
    for k in range(12):
        name = "bert.encoder.layer.%d." % k
        for part in ("query", "key", "value"):
            net.linear(name + "attention.self." + part, rows, width, width)
        net.attention(batch, tokens, width, 12)
        net.linear(name + "attention.output.dense", rows, width, width)
        net.pointwise(rows * width, 2)
        net.norm(name + "attention.output.LayerNorm", rows * width, width)
        net.linear(name + "intermediate.dense", rows, width, 4 * width)
        net.pointwise(rows * 4 * width)
        net.linear(name + "output.dense", rows, 4 * width, width)
        net.pointwise(rows * width, 2)
        net.norm(name + "output.LayerNorm", rows * width, width)
    net.linear("qa_outputs", rows, width, 2)
    return net


def gpt2(layers, width, tokens=1024, words=50257):
    def build(batch):
        net, rows = Net(), batch * tokens
        net.embedding("transformer.wte.weight", words, width, rows)
        net.embedding("transformer.wpe.weight", tokens, width, rows)
        net.pointwise(rows * width)
        for k in range(layers):
            name = "transformer.h.%d." % k

            def conv1d(part, n_in, n_out):  # a linear layer whose weight is stored transposed
                net.dense(rows, n_in, n_out, name + part + ".weight", (n_in, n_out), name + part + ".bias")

            net.norm(name + "ln_1", rows * width, width)
            conv1d("attn.c_attn", width, 3 * width)
            net.attention(batch, tokens, width, width // 64)
            conv1d("attn.c_proj", width, width)
            net.pointwise(rows * width, 2)
            net.norm(name + "ln_2", rows * width, width)
            conv1d("mlp.c_fc", width, 4 * width)
            net.pointwise(rows * 4 * width)
            conv1d("mlp.c_proj", 4 * width, width)
            net.pointwise(rows * width, 2)
        net.norm("transformer.ln_f", rows * width, width)
        net.dense(rows, width, words)  # the head shares wte, whose gradient is complete after the embedding's backward
        net.pointwise(rows * words)
        return net
    return build


def llama(layers, width, inner, kv, words, tokens):
    def build(batch):
        net, rows = Net(), batch * tokens
        net.embedding("model.embed_tokens.weight", words, width, rows)
        for k in range(layers):
            name = "model.layers.%d." % k
            net.norm(name + "input_layernorm", rows * width, width, ("weight",))
            for part, n_out in (("q", width), ("k", kv), ("v", kv)):
                net.linear(name + "self_attn.%s_proj" % part, rows, width, n_out, bias=False)
            net.pointwise(rows * (width + kv))  # rotation of positions
            net.attention(batch, tokens, width, width // 64)
            net.linear(name + "self_attn.o_proj", rows, width, width, bias=False)
            net.pointwise(rows * width)
            net.norm(name + "post_attention_layernorm", rows * width, width, ("weight",))
            net.linear(name + "mlp.gate_proj", rows, width, inner, bias=False)
            net.linear(name + "mlp.up_proj", rows, width, inner, bias=False)
            net.pointwise(rows * inner, 2)
            net.linear(name + "mlp.down_proj", rows, inner, width, bias=False)
            net.pointwise(rows * width)
        net.norm("model.norm", rows * width, width, ("weight",))
        net.linear("lm_head", rows, width, words, bias=False)
        net.pointwise(rows * words)
        return net
    return build


def word_lstm(words, tied):
    def build(batch):
        net, width, tokens = Net(), 1500, 35
        rows = batch * tokens
        net.embedding("encoder.weight", words, width, rows)
        for k in range(2):
            net.pointwise(rows * width)
            net.lstm("rnns.%d" % k, batch, tokens, width, width)
        net.pointwise(rows * width)
        net.dense(rows, width, words, None if tied else "decoder.weight", (words, width), "decoder.bias")
        net.pointwise(rows * words)
        return net
    return build


# ---- image translation in two directions --------------------------------------------------------------------------------
def ugatit_generator(net, name, batch):
    """The full model: its FC.0 sees every pixel of 64 x 64 x 256."""
    size, width = 256, 64
    net.conv(name + "DownBlock.1", batch, size, 3, width, 7, bias=False, first=True)
    for k, layer in enumerate((5, 9)):
        net.norm("", batch * size * size * width, width, ())
        size, width = size // 2, 2 * width
        net.conv(name + "DownBlock.%d" % layer, batch, size, width // 2, width, 3, bias=False)
    pixels = batch * size * size * width
    net.norm("", pixels, width, ())
    for layer in range(12, 16):
        for part in (1, 5):
            net.conv(name + "DownBlock.%d.conv_block.%d" % (layer, part), batch, size, width, width, 3, bias=False)
            net.norm("", pixels, width, ())
    for part in ("gap_fc", "gmp_fc"):
        net.pointwise(pixels)
        net.linear(name + part, batch, width, 1, bias=False)
    net.conv(name + "conv1x1", batch, size, 2 * width, width, 1)
    net.linear(name + "FC.0", batch, size * size * width, width, bias=False)
    for part in ("FC.2", "gamma", "beta"):
        net.linear(name + part, batch, width, width, bias=False)
    for block in range(1, 5):
        for part in (1, 2):
            net.conv(name + "UpBlock1_%d.conv%d" % (block, part), batch, size, width, width, 3, bias=False)
            net.norm(name + "UpBlock1_%d.norm%d" % (block, part), 2 * pixels, width, ("rho",), (1, width, 1, 1))
    for layer in (2, 7):
        size, width = 2 * size, width // 2
        net.pointwise(batch * size * size * 2 * width)
        net.conv(name + "UpBlock2.%d" % layer, batch, size, 2 * width, width, 3, bias=False)
        net.norm(name + "UpBlock2.%d" % (layer + 1), 2 * batch * size * size * width, width, ("beta", "gamma", "rho"),
                 (1, width, 1, 1))
    net.conv(name + "UpBlock2.11", batch, size, width, 3, 7, bias=False)


def ugatit_discriminator(net, name, batch, layers):
    """Weights under spectral normalisation are called weight_orig."""
    size, width, n_in, layer = 256, 64, 3, 1
    for k in range(layers - 1):
        size = size // 2 if k < layers - 2 else size - 1
        net.conv(name + "model.%d" % layer, batch, size, n_in, width, 4, first=not k, weight="weight_orig")
        net.pointwise(batch * size * size * width)
        n_in, width, layer = width, 2 * width, layer + 3
    for part in ("gap_fc", "gmp_fc"):
        net.pointwise(batch * size * size * n_in)
        net.dense(batch, n_in, 1, name + part + ".weight_orig", (1, n_in))
    net.conv(name + "conv1x1", batch, size, 2 * n_in, n_in, 1)
    net.conv(name + "conv", batch, size - 1, n_in, 1, 4, bias=False, weight="weight_orig")


class TwoPasses:
    """One step of U-GAT-IT: the discriminators' forward and backward, then the generators'. A gradient is complete after the
    last use of its network: 2 of each discriminator (real, fake), 3 of each generator (translation, cycle, identity)."""

    def __init__(self, batch):
        self.nets = {}
        for name in ("genA2B.", "genB2A."):
            self.nets[name] = Net()
            ugatit_generator(self.nets[name], name, batch)
        for name, layers in (("disGA.", 7), ("disLA.", 5), ("disGB.", 7), ("disLB.", 5)):
            self.nets[name] = Net()
            ugatit_discriminator(self.nets[name], name, batch, layers)
        self.generators = [self.nets[n] for n in ("genB2A.", "genA2B.")]
        self.discriminators = [self.nets[n] for n in ("disLB.", "disGB.", "disLA.", "disGA.")]

    def forward(self):
        """Up to the first backward: both translations, and both uses of each discriminator."""
        return [w for g in self.generators for w in g.forward()] + \
               [w for d in self.discriminators for w in d.forward()] * 2

    def backward(self):
        def passes(nets):  # no gradient is complete yet
            return [Step(s.work) for n in nets for s in n.backward()]
        steps = passes(self.discriminators)
        steps += [s for d in self.discriminators for s in d.backward()]
        # the generators' step: forward of three uses each and of the discriminators, then backward of all uses but the last
        steps += [Step(w) for n in self.generators * 3 + self.discriminators for w in n.forward()]
        steps += passes(self.discriminators) + passes(self.generators * 2)
        return steps + [s for g in self.generators for s in g.backward()]


ALL = [
    Architecture("vgg16", vgg16, 16, 138357544, SGD,
                 "Simonyan and Zisserman 2015, configuration D; torchvision vgg16: 138357544 parameters"),
    Architecture("resnet50", resnet((3, 4, 6, 3)), 32, 25557032, SGD,
                 "He et al. 2016; torchvision resnet50: 25557032 parameters"),
    Architecture("resnet101", resnet((3, 4, 23, 3)), 32, 44549160, SGD,
                 "He et al. 2016; torchvision resnet101: 44549160 parameters"),
    Architecture("ugatit", TwoPasses, 1, 670761088, ADAM,
                 "Kim et al. 2020, full model; networks.py of github.com/znxlwm/UGATIT-pytorch: two generators of 278959808 "
                 "and four discriminators, 670761088 parameters"),
    Architecture("bert-base", bert_base, 4, 109482240 - 590592 + 1538, ADAM,
                 "Devlin et al. 2019; bert-base-uncased (109482240 parameters) without its pooler (590592), with the head for "
                 "question answering (1538), 384 tokens"),
    Architecture("gpt2", gpt2(12, 768), 4, 124439808, ADAM,
                 "Radford et al. 2019; gpt2 of transformers: 124439808 parameters, 1024 tokens"),
    Architecture("gpt2-medium", gpt2(24, 1024), 2, 354823168, ADAM,
                 "Radford et al. 2019; gpt2-medium of transformers: 354823168 parameters, 1024 tokens"),
    Architecture("lstm", word_lstm(33278, True), 64, 85974278, SGD,
                 "Zaremba et al. 2014, large: 2 layers of 1500, 35 tokens (66M parameters with the 10000 words of PTB), for the "
                 "33278 words of WikiText-2 with tied embeddings: 85974278 parameters"),
    Architecture("vit-b-16", vit_b_16, 32, 86567656, ADAM,
                 "Dosovitskiy et al. 2021; torchvision vit_b_16: 86567656 parameters"),
    Architecture("llama-1b", llama(22, 2048, 5632, 256, 32000, 1024), 1, 1100048384, ADAM,
                 "Touvron et al. 2023 as TinyLlama (Zhang et al. 2024): 1100048384 parameters, 1024 tokens"),
]
