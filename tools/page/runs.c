/* runs.c: the two pages of strategies that were run: one with timelines (predicted above measured), one with bars
 * (predicted beside measured). Part of page.c. */

static void page_run_json(FILE *to, const page_run *r) {
    fputs("\n{", to);
    page_key(to, "name", r->name), fputc(',', to);
    page_key(to, "summary", r->summary);
    fprintf(to, ",\"ours\":%s,\"noisy\":%s,\"median_ns\":%.15g,\"p10_ns\":%.15g,\"p90_ns\":%.15g,\"steps\":%u",
            r->ours ? "true" : "false", r->noisy ? "true" : "false", page_finite(r->median_ns), page_finite(r->p10_ns),
            page_finite(r->p90_ns), r->n_steps);
    fputs(",\"predicted\":", to);
    page_report(to, &r->predicted.report);
    fputs(",\"measured\":", to);
    page_report(to, &r->measured.report);
    fputc('}', to);
}

/* Writes the runs as JSON. On the timeline page each run has two plans, predicted and measured, in the order of
 * runs. */
static void page_runs_json(FILE *to, const page_content *c) {
    const page_runs *all = c->runs;
    fputs(",\n\"replay\":{", to);
    page_key(to, "how", all->how), fputc(',', to);
    page_key(to, "warning", all->warning);
    fprintf(to, ",\"shown\":%u,\"base_ns\":%.15g,\"runs\":[", all->shown, page_finite(all->base_ns));
    for (uint32_t i = 0; i < all->n_runs; i++) {
        if (i) fputc(',', to);
        page_run_json(to, &all->runs[i]);
    }
    fputs("]}", to);
    if (!c->n_plans) return;
    page_model_json(to, all->runs[0].predicted.model);
    fputs(",\n\"plans\":[", to);
    for (uint32_t i = 0; i < all->n_runs; i++) {
        if (i) fputc(',', to);
        page_plan_json(to, &all->runs[i].predicted);
        fputc(',', to);
        page_plan_json(to, &all->runs[i].measured);
    }
    fputc(']', to);
}

static int page_runs_timeline(FILE *to, const page_runs *runs, const page_info *info) {
    page_content c = {.runs = runs, .n_plans = 2, .info = info};
    page_put(to, "timeline.html", &c);
    return page_end(to);
}

static int page_runs_compare(FILE *to, const page_runs *runs, const page_info *info) {
    page_content c = {.runs = runs, .info = info};
    page_put(to, "measured.html", &c);
    return page_end(to);
}
