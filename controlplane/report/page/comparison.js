// Strategies side by side.

/** Which strategy keeps every limit most cheaply, and what cheaper ones cost in late workloads. */
function outcomeWords(document) {
  const truth = document.truths.find((t) => t.name === "measured") || document.truths[0];
  if (!truth || !document.strategies.length) return "";
  const late = (s) => s.truths[truth.name].late.length + s.infeasible.length;
  const price = (s) => (priced(document.prices) ? s.cost_per_hour : s.gpus);
  const ordered = [...document.strategies].sort((a, b) => late(a) - late(b) || price(a) - price(b));
  const [best, ...others] = ordered;
  const needs = (s) => `${s.name} needs ${counted(s.gpus, document.noun)}`;
  if (late(best) >= document.workloads) return `Simulated ${truth.title.toLowerCase()}, every plan leaves all workloads late or not served.`;
  const world = `Simulated ${truth.title.toLowerCase()}, `;
  const fails = (s) => `${late(s)} of ${counted(document.workloads, "workload")} late or not served`;
  const cheaper = others.filter((s) => price(s) < price(best) && late(s) > late(best)).map((s) => `${needs(s)} and has ${fails(s)}`);
  const first = late(best) ? `no plan keeps every limit: ${needs(best)} and has the fewest, ${fails(best)}` : `${needs(best)} and keeps every limit`;
  return `${world}${first}${cheaper.length ? `; ${cheaper.join("; ")}` : ""}.`;
}

function comparison(document) {
  const truths = document.truths;
  const energy = document.strategies.some((s) => truths.some((t) => known(s.truths[t.name]?.power_w)));
  const costs = priced(document.prices) ? `; price per hour: ${priceWords(document.prices)}` : "";
  const late = (s, truth) => {
    const count = s.truths[truth.name].late.length;
    return el("span", { class: count ? "bad" : "good" }, count ? String(count) : "none");
  };
  return section("comparison", "Strategies side by side",
    el("p", { class: "verdict" }, outcomeWords(document)),
    el("p", {}, "A workload is late if more than 1 % of its requests take longer than its SLO. The columns on the right have the number of late workloads when the plan is simulated in a world that is as believed, as measured, slower, faster or burstier. Utilisation is a workload's rate over its capacity."),
    scrolling("Table of strategies", plainTable(`${counted(document.workloads, "workload")}; simulated for ${document.seconds} s${costs}`, [
      { title: "Strategy", cell: (s) => s.name },
      { title: `${document.noun}s`, number: true, cell: (s) => String(s.gpus) },
      ...(costs ? [{ title: "Cost per hour", number: true, cell: (s) => number(s.cost_per_hour, 2) }] : []),
      { title: "Workloads not served", number: true, cell: (s) => String(s.infeasible.length) },
      { title: "Planned in s", number: true, wide: true, cell: (s) => number(s.planning_ms / 1000, 2) },
      { title: "Utilisation, median", number: true, wide: true, cell: (s) => (s.utilisation ? `${Math.round(100 * s.utilisation.median)} %` : dash) },
      { title: "Predicted late", number: true, wide: true, cell: (s) => String(s.predicted_late.length) },
      ...truths.map((t) => ({ title: `Late: ${t.title.toLowerCase()}`, number: true, cell: (s) => late(s, t) })),
      ...(energy ? [{ title: "Power W", number: true, wide: true, cell: (s) => number(s.truths[truths[0]?.name]?.power_w, 0) }] : []),
    ], document.strategies)),
    document.refused.map((one) => el("p", { class: "bad" }, `${one.name} cannot plan this: ${one.reason}`)),
    el("h3", {}, "The truths"),
    el("ul", {}, truths.map((t) => el("li", {}, el("strong", {}, `${t.title}: `), t.meaning))));
}
