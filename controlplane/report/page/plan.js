// A plan: the verdict, the GPUs as bars, and the table of workloads.

/** The price of one GPU of each type. */
const pricesOf = (plan) => Object.fromEntries(plan.gpus.map((gpu) => [gpu.type, gpu.price_per_hour]));

function verdict(plan) {
  const served = plan.workloads.length, silent = plan.seen ? plan.workloads.filter((w) => !known(w.value_ms)).length : 0;
  const late = plan.workloads.filter((w) => !w.holds).length - silent;
  const kinds = [...new Set(plan.gpus.map((g) => g.type))].join(" and ");
  const cost = plan.totals && priced(pricesOf(plan)) ? `, for ${number(plan.totals.cost_per_hour, 2)} per hour` : "";
  const what = `${counted(served, "workload")} ${served === 1 ? "runs" : "run"} on ${counted(plan.gpus.length, plan.noun)} (${kinds})${cost}.`;
  const verb = { simulated: "stay", observed: "stay", predicted: "are predicted to stay" }[plan.basis.kind];
  const quiet = silent ? ` ${counted(silent, "workload")} had no request in the last minute.` : "";
  if (silent === served) return el("p", { class: "verdict" }, what, quiet);
  if (plan.basis.measure !== "P99") return el("p", { class: "verdict" }, `${what} ${executionWords(served, late)}`);
  const kept = late === 0
    ? el("span", { class: "good" }, `All ${verb} within ${limitWords(plan)}.`)
    : el("span", { class: "bad" }, `${late} of ${served} do not stay within ${limitWords(plan)}.`);
  return el("p", { class: "verdict" }, `${what} `, kept, tightest(plan), quiet);
}

function tightest(plan) {
  const [first] = plan.workloads.filter((w) => known(w.value_ms)).sort((a, b) => margin(a) - margin(b));
  return first && margin(first) >= 0 ? ` The least margin is that of ${first.name}: ${percent(margin(first))}.` : "";
}

/** What a rule about executions promises, and what it leaves open. */
function executionWords(served, late) {
  const executed = late === 0 ? "A full batch of each" : `A full batch of ${served - late} of ${served}`;
  return `${executed} is predicted to execute within half its latency limit (SLO). ` +
    "This plan's rule says nothing about waiting in queues: `ctl simulate` shows how many requests are late.";
}

const limitWords = (plan) => (plan.basis.limit === "SLO" ? "their latency limits (SLOs)" : plan.basis.limit);

function summary(plan) {
  const totals = plan.totals || {}, bound = totals.lower_bound_gpus;
  const prices = pricesOf(plan);
  const used = plan.gpus.reduce((sum, g) => sum + g.percent, 0) / Math.max(plan.gpus.length, 1);
  return el(
    "header", {},
    el("h1", {}, plan.title),
    verdict(plan),
    el("p", { class: "soft" },
      `Models share ${plan.noun}s, each with a fixed part of one. A workload's limit, its SLO, is the time within which 99 of ` +
      `100 of its requests should be answered. The times here come from ${plan.basis.source}. ` +
      (plan.strategy ? `The strategy ${plan.strategy} chose shares, batches and neighbours.` : "")),
    facts([
      [capital(`${plan.noun}s`), String(plan.gpus.length)],
      ["Lower bound", bound ? `at least ${counted(bound, plan.noun)}` : null],
      [`Cost per hour (${priceWords(prices)} each)`, plan.totals && priced(prices) ? number(totals.cost_per_hour, 2) : null],
      ["Workloads", String(plan.workloads.length)],
      ["Planned rate", `${Math.round(plan.workloads.reduce((sum, w) => sum + w.rate_rps, 0)).toLocaleString("en")} inferences/s`],
      [`Mean share of a ${plan.noun} assigned`, `${Math.round(used)} %`],
      ["Strategy", plan.strategy],
    ]),
    problems(plan),
  );
}

function problems(plan) {
  const lines = [
    ...plan.infeasible.map((one) => `${one.workload} is not served: ${one.reason}${nearest(one)}`),
    ...plan.violations.map((one) => `${one.subject}: ${one.reason}`),
    ...(plan.troubles || []),
    ...(plan.controller === false ? ["The fleet has no controller: slow and dead servers are not replaced."] : []),
  ];
  return lines.length ? el("ul", { class: "bad", "aria-label": "Promises that are not kept" }, lines.map((line) => el("li", {}, line))) : null;
}

function nearest(one) {
  const ways = [];
  if (known(one.nearest_slo_ms)) ways.push(`an SLO of ${number(one.nearest_slo_ms)} ms`);
  if (known(one.nearest_rate_rps)) ways.push(`a rate of ${rate(one.nearest_rate_rps)}/s`);
  return ways.length ? `; ${ways.join(" or ")} would fit` : "";
}

// -- GPUs ---------------------------------------------------------------------------------------------------

function gpuSection(plan, colours) {
  const reserve = plan.gpus.some((gpu) => extraOf(gpu) > 0);
  const entries = [...colours].map(([model, colour]) => el("li", {}, el("span", { class: "swatch", style: `background:${colour}` }), model));
  if (reserve) entries.push(el("li", {}, el("span", { class: "swatch shadow-fill" }), "room for a shadow, one at a time"));
  entries.push(el("li", {}, el("span", { class: "swatch" }), "free"));
  return section(
    "gpus", capital(`${plan.noun}s`),
    el("p", {},
      `Each bar is one ${plan.noun}, and each block a partition: one Triton server with a fixed share of the ${plan.noun}. ` +
      `Workloads of one model may share a server, and one workload may be served by several. ` +
      "A shadow is a second server that stands by with the same models; traffic moves to it if the first one is slow or dies."),
    el("ul", { class: "legend", "aria-label": "Colours of the blocks" }, entries),
    el("ul", { class: "gpus" }, plan.gpus.map((gpu) => gpuBar(gpu, colours))),
  );
}

const stands = (shadow) => shadow && shadow.policy !== "none";

/** The largest extra share of a shadow on its own GPU: at most one of a GPU's shadows is active. */
function extraOf(gpu) {
  return Math.max(0, ...gpu.partitions.map((p) => (stands(p.shadow) && p.shadow.gpu === gpu.id ? p.shadow.extra_percent : 0)));
}

function gpuBar(gpu, colours) {
  const extra = extraOf(gpu);
  const blocks = gpu.partitions.map((p) => partitionBlock(gpu, p, colours));
  if (extra > 0) {
    blocks.push(el("li", { class: "shadow shadow-fill", style: `flex:0 0 ${extra}%`, title: `${share(extra)} for a shadow` },
      el("span", { class: "hidden" }, `${share(extra)} reserved for a shadow`)));
  }
  return el("li", { class: "gpu" },
    el("span", { class: "id", title: memoryWords(gpu) }, gpu.id, el("br"), el("span", { class: "soft" }, `${share(gpu.percent)} assigned`)),
    el("ul", { class: "segments", "aria-label": `Partitions of ${gpu.id}` }, blocks));
}

/** What takes how much of a GPU's memory, as far as that is known. */
function memoryWords(gpu) {
  const used = Object.entries(gpu.used_mb ?? {});
  if (!used.length) return "memory: unknown";
  const total = used.reduce((sum, [, mb]) => sum + mb, 0);
  return `memory: ${number(total, 0)}${known(gpu.memory_mb) ? ` of ${number(gpu.memory_mb, 0)}` : ""} MB: ${used.map(([name, mb]) => `${name} ${number(mb, 0)}`).join(", ")}`;
}

function partitionBlock(gpu, partition, colours) {
  const models = partition.models.map((m) => `${m.model}, batch ${m.batch}`).join("; ");
  const names = partition.workloads.join(", ");
  const told = `${names}: ${share(partition.percent)} (${models})${shadowWords(gpu, partition.shadow)}${lossWords(partition)}${partition.note ? `; ${partition.note}` : ""}`;
  return el("li", {
    style: `flex:0 0 ${partition.percent}%;background:${fill(partition.models, colours)}`, title: told,
    "data-workloads": JSON.stringify(partition.workloads),
  }, el("span", { "aria-hidden": "true" }, names || partition.id, el("br"), share(partition.percent), partition.note ? " ⚠" : ""), el("span", { class: "hidden" }, told));
}

function fill(models, colours) {
  const of = models.map((m) => colours.get(m.model));
  if (of.length === 1) return of[0];
  const step = 100 / of.length;
  return `linear-gradient(180deg, ${of.map((c, i) => `${c} ${i * step}% ${(i + 1) * step}%`).join(", ")})`;
}

function shadowWords(gpu, shadow) {
  if (!stands(shadow)) return "; no shadow";
  return `; ${shadow.policy} shadow with ${share(shadow.percent)}${shadow.gpu !== gpu.id ? ` on ${shadow.gpu}` : ""}${known(shadow.covers) ? `, covers ${number(shadow.covers, 2)} times the planned times` : ""}${known(shadow.redirect_s) ? `, answers after ${number(shadow.redirect_s, 1)} s` : ""}`;
}

function lossWords(partition) {
  if (!known(partition.survives_gpu_loss)) return "";
  return partition.survives_gpu_loss ? "; survives the loss of its device" : "; ends with its device";
}

// -- workloads ----------------------------------------------------------------------------------------------

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const percent = (part) => `${Number((100 * part).toPrecision(2))} %`;

/** A time with as many digits as tell it from its limit. */
function apart(value, limit) {
  const digits = [1, 2, 3].find((n) => value === limit || number(value, n) !== number(limit, n)) || 3;
  return number(value, digits);
}
const margin = (w) => (known(w.value_ms) ? 1 - w.value_ms / w.limit_ms : null);

function workloadColumns(plan) {
  const late = plan.workloads.some((w) => known(w.late_percent));
  const measure = capital(plan.basis.measure), limit = plan.basis.limit;
  return [
    { title: "Workload", key: (w) => w.name },
    { title: "Model", key: (w) => w.model, wide: true, cell: (w) => w.model },
    { title: "Rate/s", key: (w) => w.rate_rps, number: true, wide: true, cell: (w) => rate(w.rate_rps) },
    ...(plan.seen ? [{ title: "Seen/s", key: (w) => w.seen_rps, number: true, cell: (w) => rate(w.seen_rps) }] : []),
    { title: `${capital(limit)} ms`, key: (w) => w.limit_ms, number: true, cell: (w) => String(Number(w.limit_ms.toFixed(1))) },
    { title: `${measure} ms`, key: (w) => w.value_ms, number: true, cell: (w) => apart(w.value_ms, w.limit_ms) },
    { title: `${measure} of ${limit}`, key: margin, wide: true, cell: limitBar },
    { title: "Margin", key: margin, number: true, cell: (w) => (known(w.value_ms) ? percent(margin(w)) : dash) },
    ...(late ? [{ title: "Late %", key: (w) => w.late_percent, number: true, cell: (w) => number(w.late_percent, 2) }] : []),
    { title: plan.seen ? "Utilisation planned" : "Utilisation", key: (w) => w.utilisation, number: true, wide: true, cell: (w) => (known(w.utilisation) ? percent(w.utilisation) : dash) },
    ...(plan.seen ? [{ title: "Utilisation measured", key: (w) => w.busy, number: true, wide: true, cell: (w) => (known(w.busy) ? percent(w.busy) : dash) }] : []),
    { title: "Holds", key: (w) => Number(w.holds), cell: (w) => el("span", { class: w.holds ? "good" : known(w.value_ms) ? "bad" : "soft" }, w.holds ? "yes" : known(w.value_ms) ? "no" : plan.seen ? "no request" : "unknown") },
    { title: `On`, key: (w) => w.gpus[0] || "", wide: true, cell: (w) => (w.gpus.length > 2 ? `${w.gpus[0]} and ${w.gpus.length - 1} more` : w.gpus.join(", ")) },
  ];
}

function limitBar(w) {
  const part = known(w.value_ms) ? w.value_ms / w.limit_ms : 0, scale = Math.max(1, part);
  return el("div", { class: part > 1 ? "bar over" : "bar", "aria-hidden": "true" },
    el("span", { style: `width:${(100 * part) / scale}%` }), part > 1 ? el("i", { style: `left:${100 / scale}%` }) : null);
}

function details(plan, w, columns) {
  const reason = w.partitions.map((p) => plan.reasons[`${p}/${w.model}`]).find(Boolean);
  const lines = [
    `Model ${w.model}, planned for ${rate(w.rate_rps)} inferences/s${known(w.utilisation) ? `, ${percent(w.utilisation)} of what its servers can answer` : ""}. Clients call the endpoint ${w.endpoint}${w.client_batch > 1 ? ` with ${w.client_batch} inferences in a request` : ""}.`,
    known(w.busy) ? `In the last minutes its busiest server executed batches in ${percent(w.busy)} of the time.` : null,
    `Served by ${counted(w.partitions.length, "partition")} on ${w.gpus.join(", ")}; batches of up to ${w.batch}.`,
    w.companions.length ? `It shares its queue with ${w.companions.join(", ")}.` : null,
  ].filter(Boolean);
  return el("tr", { class: "details" }, el("td", { colspan: columns },
    lines.map((line) => el("p", {}, line)),
    reason ? el("h3", {}, "Why this share and batch") : null,
    reason ? el("ul", {}, reason.sentences.map((s) => el("li", {}, s))) : null,
    reason ? alternatives(plan, reason, w.limit_ms) : null));
}

function alternatives(plan, reason, limit_ms) {
  return plainTable("The planned setting and the nearest alternatives", [
    { title: "Setting", cell: (a) => a.what },
    { title: "Share", number: true, cell: (a) => share(a.percent) },
    { title: "Batch", number: true, cell: (a) => String(a.batch) },
    { title: `${plan.basis.kind === "simulated" ? "Predicted " : ""}${plan.basis.kind === "simulated" ? "time" : plan.basis.measure} ms`, number: true, cell: (a) => apart(a.value_ms, limit_ms) },
    { title: "Utilisation", number: true, wide: true, cell: (a) => `${Math.round(100 * a.utilisation)} %` },
    { title: "Holds", cell: (a) => (a.holds ? "yes" : `no: ${a.breaks.slice(0, 3).join(", ")}${a.breaks.length > 3 ? " …" : ""}`) },
  ], reason.alternatives, (a) => (a === reason.alternatives[0] ? "planned" : null));
}

/** The table of workloads: sorted by a column, filtered, with a row of details that opens below each. */
class WorkloadTable {
  constructor(plan) {
    this.plan = plan;
    this.columns = workloadColumns(plan);
    this.sorted = { column: this.columns.findIndex((c) => c.title === "Margin"), down: false };
    this.open = new Set();
    this.body = el("tbody", {});
    this.heads = this.columns.map((column, index) => el("th", { scope: "col", class: this.classOf(column) },
      el("button", { type: "button", onclick: () => this.sort(index) }, column.title)));
    this.count = el("p", { class: "soft", role: "status" });
  }

  classOf(column) {
    return [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null;
  }

  sort(index) {
    this.sorted = { column: index, down: this.sorted.column === index && !this.sorted.down };
    this.draw(this.filter);
  }

  draw(filter) {
    this.filter = filter;
    const { column, down } = this.sorted, key = this.columns[column].key, sign = down ? -1 : 1;
    const order = (a, b) => Number(!known(a)) - Number(!known(b)) || (a < b ? -sign : a > b ? sign : 0);
    const rows = this.plan.workloads.filter(filter).sort((a, b) => order(key(a), key(b)) || (a.name < b.name ? -1 : 1));
    this.heads.forEach((head, index) => head.setAttribute("aria-sort", index !== column ? "none" : down ? "descending" : "ascending"));
    this.body.replaceChildren(...rows.flatMap((w) => this.rows(w)));
    this.count.textContent = `${rows.length} of ${counted(this.plan.workloads.length, "workload")} shown`;
  }

  rows(w) {
    const shown = this.open.has(w.name), [, ...others] = this.columns;
    const button = el("button", { type: "button", "aria-expanded": String(shown), onclick: () => this.toggle(w.name) }, `${shown ? "▾" : "▸"} ${w.name}`);
    const row = el("tr", { "data-workload": w.name }, el("th", { scope: "row" }, button),
      others.map((c) => el("td", { class: this.classOf(c) }, c.cell(w))));
    return shown ? [row, details(this.plan, w, this.columns.length)] : [row];
  }

  toggle(name) {
    if (!this.open.delete(name)) this.open.add(name);
    this.draw(this.filter);
    this.body.querySelector(`[data-workload="${CSS.escape(name)}"] button`)?.focus();
  }

  section() {
    return section("workloads", "Workloads",
      el("p", {}, "Those with the least margin come first. A workload's name opens why it has its share and batch. " +
        `A workload holds where its ${this.plan.basis.measure} is within ${this.plan.basis.limit === "SLO" ? "its SLO" : this.plan.basis.limit}.`,
        el("span", { class: "wide" }, this.plan.seen
          ? " Utilisation planned is its planned rate over what its servers can answer; measured, the part of the last minutes in which its busiest server executed batches."
          : " Utilisation is its rate over what its servers can answer.")),
      this.count,
      scrolling("Table of workloads", el("table", {}, el("caption", { class: "hidden" }, "Workloads, their limits and times"),
        el("thead", {}, el("tr", {}, this.heads)), this.body)));
  }
}

/** Search and filters; calls `apply(filter)` with a predicate on workloads. */
function controls(plan, apply) {
  const search = el("input", { type: "search", id: "search", autocomplete: "off" });
  const model = el("select", { id: "model" }, el("option", { value: "" }, "all models"),
    [...new Set(plan.workloads.map((w) => w.model))].sort().map((m) => el("option", { value: m }, m)));
  const late = el("input", { type: "checkbox", id: "late" });
  const changed = () => {
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    apply((w) => {
      const text = `${w.name} ${w.endpoint} ${w.model} ${w.gpus.join(" ")}`.toLowerCase();
      return words.every((word) => text.includes(word)) && (!model.value || w.model === model.value) && (!late.checked || (known(w.value_ms) && !w.holds));
    });
  };
  for (const input of [search, model, late]) input.addEventListener("input", changed);
  return el("form", { class: "controls", role: "search", onsubmit: (event) => event.preventDefault() },
    el("label", {}, `Search workloads, models, ${plan.noun}s`, search), el("label", {}, "Model", model),
    el("label", { class: "check" }, late, "only those that miss their SLO"));
}

/** Draw a plan into `into`; return what draws it again after a change of the figures. */
function drawPlan(into, plan) {
  const colours = coloursOf(plan.gpus.flatMap((g) => g.partitions.flatMap((p) => p.models.map((m) => m.model))));
  const table = new WorkloadTable(plan);
  let gpus = gpuSection(plan, colours), filter = () => true;
  const apply = (wanted) => {
    filter = wanted;
    table.draw(filter);
    const shown = new Set(plan.workloads.filter(filter).map((w) => w.name));
    for (const block of gpus.querySelectorAll("[data-workloads]")) {
      block.classList.toggle("dim", !JSON.parse(block.dataset.workloads).some((name) => shown.has(name)));
    }
  };
  into.append(controls(plan, apply), gpus, table.section());
  apply(filter);
  return () => {
    const focused = document.activeElement?.closest?.("[data-workload]")?.dataset.workload;
    const fresh = gpuSection(plan, colours);
    gpus.replaceWith(fresh);
    gpus = fresh;
    apply(filter);
    if (focused) into.querySelector(`[data-workload="${CSS.escape(focused)}"] button`)?.focus();
  };
}
