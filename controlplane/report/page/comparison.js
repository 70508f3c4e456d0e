// Strategies side by side.

function comparison(document) {
  const truths = document.truths;
  const energy = document.strategies.some((s) => truths.some((t) => known(s.truths[t.name]?.power_w)));
  const late = (s, truth) => {
    const count = s.truths[truth.name].late.length;
    return el("span", { class: count ? "bad" : "good" }, count ? String(count) : "none");
  };
  return section("comparison", "Strategies side by side",
    el("p", {}, "A workload is late if more than 1 % of its requests take longer than its SLO. The columns on the right have the number of late workloads when the plan is simulated in a world that is as believed, as measured, slower, faster or burstier."),
    scrolling("Table of strategies", plainTable(`${counted(document.workloads, "workload")}; simulated for ${document.seconds} s`, [
      { title: "Strategy", cell: (s) => s.name },
      { title: `${document.noun}s`, number: true, cell: (s) => String(s.gpus) },
      { title: "Cost per hour", number: true, cell: (s) => (document.priced ? number(s.cost_per_hour, 2) : dash) },
      { title: "Not served", number: true, cell: (s) => String(s.infeasible.length) },
      { title: "Planned in s", number: true, cell: (s) => number(s.planning_ms / 1000, 2) },
      { title: "Busy, median", number: true, cell: (s) => (s.utilisation ? `${Math.round(100 * s.utilisation.median)} %` : dash) },
      { title: "Predicted late", number: true, cell: (s) => String(s.predicted_late.length) },
      ...truths.map((t) => ({ title: `Late: ${t.title.toLowerCase()}`, number: true, cell: (s) => late(s, t) })),
      ...(energy ? [{ title: "Power W", number: true, cell: (s) => number(s.truths[truths[0]?.name]?.power_w, 0) }] : []),
    ], document.strategies)),
    document.refused.map((one) => el("p", { class: "bad" }, `${one.name} cannot plan this: ${one.reason}`)),
    el("h3", {}, "The truths"),
    el("ul", {}, truths.map((t) => el("li", {}, el("strong", {}, `${t.title}: `), t.meaning))));
}
