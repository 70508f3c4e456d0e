// Charts as SVG. Each has a table or a sentence with the same figures beside it.

const box = { width: 420, height: 200, left: 46, right: 10, top: 12, bottom: 30 };

function scaleOf(values, low, high) {
  const least = Math.min(...values), most = Math.max(...values), span = most - least || 1;
  return (value) => low + ((value - least) / span) * (high - low);
}

/** About `count` round numbers from 0 on: steps of 1, 2 or 5 times a power of ten. */
function roundTicks(most, count = 6) {
  const rough = most / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}

/** A chart of points {x, y}; `marks` are {y, text} lines across, `flags` {x, text} lines down. */
function lineChart({ points, xs, yTitle, xTitle, xText, marks = [], flags = [], dots = true }) {
  const usable = points.filter((p) => known(p.y));
  const x = scaleOf(xs || points.map((p) => p.x), box.left, box.width - box.right);
  const highest = Math.max(1e-9, ...usable.map((p) => p.y), ...marks.map((m) => m.y));
  const y = scaleOf([0, highest * 1.05], box.height - box.bottom, box.top);
  const line = (attributes) => svg("line", { stroke: "currentColor", ...attributes });
  const ticks = roundTicks(highest * 1.05);
  const path = usable.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`).join("");
  const all = xs || points.map((p) => p.x), first = Math.min(...all), last = Math.max(...all);
  const places = [first, (2 * first + last) / 3, (first + 2 * last) / 3, last];
  const anchor = (at) => (at === first ? "start" : at === last ? "end" : "middle");
  return svg("svg", { viewBox: `0 0 ${box.width} ${box.height}`, "aria-hidden": "true" },
    ticks.map((t) => svg("text", { x: box.left - 5, y: y(t) + 4, "text-anchor": "end" }, String(Number(t.toPrecision(3))))),
    ticks.map((t) => line({ x1: box.left, x2: box.width - box.right, y1: y(t), y2: y(t), opacity: 0.15 })),
    places.map((at) => svg("text", { x: x(at), y: box.height - 14, "text-anchor": anchor(at) }, xText(at))),
    places.map((at) => line({ x1: x(at), x2: x(at), y1: box.height - box.bottom, y2: box.height - box.bottom + 4, opacity: 0.5 })),
    svg("text", { x: box.left, y: 9 }, yTitle),
    svg("text", { x: (box.left + box.width) / 2, y: box.height - 2, "text-anchor": "middle" }, xTitle),
    flags.map((f) => line({ x1: x(f.x), x2: x(f.x), y1: box.top, y2: box.height - box.bottom, stroke: "var(--bad)", "stroke-dasharray": "2 2" })),
    marks.map((m) => line({ x1: box.left, x2: box.width - box.right, y1: y(m.y), y2: y(m.y), stroke: "var(--bad)", "stroke-dasharray": "5 3" })),
    marks.map((m) => svg("text", { x: box.width - box.right, y: y(m.y) - 3, "text-anchor": "end" }, m.text)),
    svg("path", { d: path, fill: "none", stroke: "var(--link)", "stroke-width": 2 }),
    dots ? usable.map((p) => svg("circle", { cx: x(p.x), cy: y(p.y), r: 3, fill: "var(--link)" })) : []);
}

