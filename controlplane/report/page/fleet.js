// A fleet's record: rate and P99 of each endpoint over time, and what happened.

function timeline(document) {
  const all = document.timeline.flatMap((one) => one.points.map((p) => p.at_s));
  if (!all.length) return section("timeline", "Over time", el("p", {}, "Nothing was recorded in this time."));
  const xs = [Math.min(...all), Math.max(...all)];
  const flags = document.events.filter((e) => e.kind === "redirect" && e.at_s >= xs[0] && e.at_s <= xs[1]);
  const marksOf = (one) => (known(one.slo_ms) ? [{ y: one.slo_ms, text: `SLO ${rate(one.slo_ms)} ms` }] : []);
  return section("timeline", "Over time",
    el("p", {}, "P99 of each endpoint, minute by minute; the dashed line across is the SLO, lines down are redirects to a shadow or back."),
    el("div", { class: "charts" }, document.timeline.map((one) => el("figure", {},
      lineChart({
        points: one.points.map((p) => ({ x: p.at_s, y: p.p99_ms })), xs, yTitle: "P99 ms", xTitle: one.endpoint, xText: clock, dots: one.points.length < 60,
        marks: marksOf(one), flags: flags.filter((e) => one.partitions.includes(e.subject)).map((e) => ({ x: e.at_s })),
      }),
      el("figcaption", {}, timelineWords(one))))));
}

function timelineWords(one) {
  const requests = one.points.reduce((sum, p) => sum + p.requests, 0), failed = one.points.reduce((sum, p) => sum + p.failed, 0);
  const worst = Math.max(0, ...one.points.map((p) => p.p99_ms || 0));
  const above = known(one.slo_ms) ? one.points.filter((p) => (p.p99_ms || 0) > one.slo_ms).length : 0;
  const shares = [...new Set(one.points.map((p) => p.percent))];
  return `${one.endpoint}: ${counted(requests, "request")}, ${failed} failed; largest P99 of a minute ${number(worst)} ms, ` +
    `above its SLO in ${above} of ${counted(one.points.length, "minute")}; share ${shares.map(share).join(", then ")}.`;
}

function eventList(document) {
  const list = el("ul", { class: "events", id: "event-list" },
    document.events.map((e) => el("li", {}, el("span", { class: "soft" }, `${clock(e.at_s)} `),
      el("span", { class: e.level === "info" ? null : "bad" }, `${e.kind} ${e.subject}: `), e.reason)));
  return section("events", "What happened", document.events.length ? list : el("p", {}, "No event is recorded."));
}
