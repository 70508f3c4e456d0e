// The page: which sections it has depends on what the document holds.

/** Draw a document; return what draws its changing parts again. */
function draw(found) {
  const main = document.getElementById("page");
  let head = found.gpus ? summary(found) : el("header", {}, el("h1", {}, found.title));
  main.replaceChildren(head);
  if (found.strategies) main.append(comparison(found));
  const redrawPlan = found.gpus ? drawPlan(main, found) : () => {};
  if (found.timeline) main.append(timeline(found));
  let happened = found.events ? eventList(found) : null;
  if (happened) main.append(happened);
  return () => {
    const fresh = summary(found);
    head.replaceWith(fresh);
    head = fresh;
    redrawPlan();
    if (happened) {
      const events = eventList(found);
      happened.replaceWith(events);
      happened = events;
    }
  };
}

/** Lead keyboards past what stands above the table that the page is about. */
function skipTo(title) {
  const link = document.querySelector(".skip");
  link.href = `#${title.id}`;
  link.textContent = `Skip to: ${title.textContent}`;
}

/** Follow a fleet: each event is a new document. The browser connects again by itself. */
function follow(found, redraw) {
  const state = el("p", { class: "soft", role: "status", id: "state" });
  document.getElementById("page").prepend(state);
  const source = new EventSource(found.live);
  source.onopen = () => { state.textContent = "Live"; };
  source.onerror = () => { state.textContent = "Not connected: these are the last figures. The page tries again."; };
  source.onmessage = (event) => {
    found.troubles = [];
    Object.assign(found, JSON.parse(event.data));
    redraw();
  };
}

const found = JSON.parse(document.getElementById("document").textContent);
const redraw = draw(found);
const about = document.getElementById("workloads-title") || document.querySelector("h2");
if (about) skipTo(about);
if (found.live) follow(found, redraw);
