/* program_hops.c: compiles an allreduce that compresses at every hop. Part of program.c. */
static void esp__compile_hops(esp__compile *c, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    const int raw = esp__contributions(c) == 1 && !esp__summed_any(&c->region),
              part = esp__region_takes_part(&c->region, s);
    const uint32_t source = esp__lowest_replica(c);
    uint64_t begin, length;
    uint32_t swap;
    esp__numbers_to(c, 0, i); /* the backend calls the codec on the host */
    esp__to_f32(c, i);
    esp__region_now(c, &begin, &length);
    esp__region_step(&c->region, &c->at, &c->u->option, i, &swap);
    if (part) {
        const uint64_t most = length < ESP__HOP_ELEMENTS ? length : ESP__HOP_ELEMENTS;
        const esp_tensor like = esp__codec_like(most, 0, 0);
        esp__op *op = esp__op_new(c, ESP__OP_COLLECTIVE, 0, i);
        esp_bound b;
        esp__op_links(c, op, s);
        op->hops = s->hops;
        op->comp_index = (uint8_t)c->comps;
        op->raw = (uint8_t)raw;
        op->source = source;
        op->begin = begin, op->length = length;
        op->data = op->src = op->dst = c->work;
        op->src.offset += begin * 4u;
        op->dst.offset += begin * 4u;
        op->coll.dtype = ESP_F32;
        op->coll.count = length;
        op->coll.src.bytes = op->coll.dst.bytes = length * 4u;
        const esp_status status = esp__codec_bound_of(c->ctx, c->u->codec, &like, 0, 1, &b);
        if (status) c->status = status;
        if (!status && b.scratch_bytes > c->p->hop_scratch_bytes) c->p->hop_scratch_bytes = b.scratch_bytes;
        if (most > c->p->hop_count) c->p->hop_count = most;
        if (c->u->codec->feedback && !c->status) op->feedback = esp__feedback_new(c, op, begin, length, 0);
    }
    c->comps++;
    esp__compile_finalize(c, i);
    if (part) esp__compile_mean(c, i);
}
