// The page: which sections it has depends on what the document holds.

function draw(found) {
  const main = document.getElementById("page");
  main.replaceChildren();
  if (found.gpus) main.append(summary(found));
  else main.append(el("header", {}, el("h1", {}, found.title), el("p", {}, found.subtitle || "")));
  if (found.strategies) main.append(comparison(found));
  const table = found.gpus ? drawPlan(main, found) : null;
  if (found.what_if) main.append(whatIf(found));
  if (found.timeline) main.append(timeline(found));
  if (found.events) main.append(eventList(found));
  return table;
}

draw(JSON.parse(document.getElementById("document").textContent));
