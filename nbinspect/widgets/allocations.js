// The curve of an allocator snapshot. A click or an arrow key asks the kernel what was alive then.

const SVG = "http://www.w3.org/2000/svg";
const SLOW_MS = 4000;
const SLOW = "No answer: the kernel runs a cell, or it is gone.";

function add(parent, tag, name, text = "") {
  const node = document.createElement(tag);
  node.className = name;
  node.textContent = text;
  parent.append(node);
  return node;
}

function drawn(parent, name, data) {
  const node = document.createElementNS(SVG, "path");
  node.setAttribute("class", name);
  node.setAttribute("d", data);
  parent.append(node);
}

// Steps from point to point, in a box of 1000 by 1000.
function steps(curve, sizes) {
  const x = (time) => (1000 * (time - curve.start)) / (curve.end - curve.start);
  const y = (size) => 1000 - (1000 * size) / curve.top;
  let path = `M0,${y(sizes[0])}`; // the first point is the highest of a run, and later than its start
  sizes.slice(1).forEach((size, n) => {
    path += `H${x(curve.times[n + 1])}V${y(size)}`;
  });
  return `${path}H1000`;
}

function render({ model, el }) {
  const root = add(el, "div", "nbi nba-allocations");
  const headline = add(add(root, "p", "nbi-block nbi-headline"), "strong", "");
  const title = add(root, "strong", "nbi-title", "");
  const plot = add(root, "div", "nbi-plot nba-plot");
  plot.tabIndex = 0;
  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-label", "moment to look at");
  const said = add(root, "p", "nba-said");
  said.setAttribute("aria-live", "polite");
  const others = add(root, "p", "nbi-note nba-others");
  const table = add(root, "table", "nbi-table");
  const more = add(root, "p", "nbi-note");
  const cursor = document.createElement("div");
  cursor.className = "nba-cursor";
  let slow = 0;

  const share = (time) => {
    const curve = model.get("curve");
    return (time - curve.start) / (curve.end - curve.start);
  };

  function place(time) {
    cursor.style.left = `${100 * Math.max(0, Math.min(1, share(time)))}%`;
    plot.setAttribute("aria-valuenow", String(time));
  }

  function ask(time) {
    place(time);
    clearTimeout(slow);
    slow = setTimeout(() => { said.textContent = SLOW; }, SLOW_MS);
    model.send({ kind: "look", time_s: time });
  }

  function axis(name, side, value, text) {
    const node = add(plot, "div", name);
    node.style[side] = value;
    node.dataset.t = text;
  }

  function draw() {
    const curve = model.get("curve");
    headline.textContent = curve.headline;
    title.textContent = curve.title;
    plot.replaceChildren();
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 1000 1000");
    svg.setAttribute("preserveAspectRatio", "none");
    const path = steps(curve, curve.allocated);
    drawn(svg, "nbi-area", `${path}V1000H0Z`);
    drawn(svg, "nba-reserved", steps(curve, curve.reserved));
    drawn(svg, "nba-active", steps(curve, curve.active));
    drawn(svg, "nbi-curve", path);
    plot.append(svg);
    axis("nbi-y", "top", "0", curve.top_text);
    axis("nbi-y", "top", "50%", curve.middle_text);
    axis("nbi-x", "left", "100%", curve.end_text);
    plot.append(cursor);
  }

  function list() {
    clearTimeout(slow);
    const alive = model.get("alive");
    said.textContent = alive.title;
    others.textContent = alive.others;
    more.textContent = alive.more;
    table.replaceChildren();
    const head = add(add(table, "thead", ""), "tr", "");
    ["allocated by", "in", "size", "allocations"].forEach((text, n) => add(head, "th", n > 1 ? "nba-number" : "", text));
    const body = add(table, "tbody", "");
    alive.rows.forEach((row) => {
      const line = add(body, "tr", "");
      row.forEach((text, n) => add(line, "td", n > 1 ? "nba-number" : "nba-name", text));
    });
    place(alive.time_s);
  }

  plot.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect();
    const curve = model.get("curve");
    const part = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    ask(curve.start + part * (curve.end - curve.start));
  });
  plot.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const curve = model.get("curve");
    const time = model.get("alive").time_s + (way * (curve.end - curve.start)) / 100;
    ask(Math.max(curve.start, Math.min(curve.end, time)));
  });
  model.on("change:curve", draw);
  model.on("change:alive", list);
  draw();
  list();
  return () => {
    clearTimeout(slow);
    model.off("change:curve", draw);
    model.off("change:alive", list);
  };
}

export default { render };
