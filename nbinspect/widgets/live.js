// Live memory bars. The kernel sends `sample` a few times a second; this file only draws.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const WINDOW_S = 60;
const SVG = "http://www.w3.org/2000/svg";

function size(bytes) {
  let value = bytes;
  let unit = 0;
  while (value >= (unit ? 1023.5 : 1024) && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const decimals = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(decimals)} ${UNITS[unit]}`;
}

const exact = (bytes) => `${bytes.toLocaleString("en").replaceAll(",", "\u202f")} bytes`;
const used = (bar) => (bar.segments.length ? bar.segments[0].size_bytes : 0);
const sum = (bar) => bar.segments.reduce((total, part) => total + part.size_bytes, 0);
const full = (bar) => bar.total_bytes || sum(bar) || 1;

function ago(seconds) {
  if (seconds < 3) return "";
  return seconds < 90 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
}

function add(parent, tag, name, text = "") {
  const node = document.createElement(tag);
  node.className = name;
  node.textContent = text;
  parent.append(node);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function paint(node, part) {
  node.style.setProperty("--nbl-fill", part.fill);
  node.classList.toggle("nbl-hatched", part.hatched);
}

// A stacked bar and its legend; what comes back brings both up to date.
function stack(tracks, legend, bar, name) {
  const node = add(tracks, "div", name);
  node.setAttribute("role", "meter");
  node.setAttribute("aria-valuemin", "0");
  const parts = bar.segments.map((part) => {
    const piece = add(node, "i", "nbl-piece");
    const item = add(legend, "span", "nbl-part");
    paint(piece, part);
    paint(add(item, "i", "nbl-swatch"), part);
    item.append(`${part.label} `);
    return { piece, item, number: add(item, "b", "nbl-number") };
  });
  return (now, scale, value, words) => {
    now.segments.forEach((part, n) => {
      const { piece, item, number } = parts[n];
      piece.style.width = `${Math.min(100, (100 * part.size_bytes) / scale).toFixed(3)}%`;
      write(number, size(part.size_bytes));
      piece.title = `${part.label}: ${exact(part.size_bytes)}`;
      item.title = exact(part.size_bytes);
    });
    node.setAttribute("aria-label", `${now.label} memory`);
    node.setAttribute("aria-valuemax", String(scale));
    node.setAttribute("aria-valuenow", String(value));
    node.setAttribute("aria-valuetext", words);
    return node;
  };
}

function sparkline(parent, fill) {
  const svg = document.createElementNS(SVG, "svg");
  const [title, area, line] = ["title", "path", "path"].map((tag) => {
    const node = document.createElementNS(SVG, tag);
    svg.append(node);
    return node;
  });
  svg.setAttribute("class", "nbl-spark");
  svg.setAttribute("viewBox", "0 0 120 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.style.setProperty("--nbl-fill", fill);
  area.setAttribute("class", "nbl-area");
  line.setAttribute("class", "nbl-line");
  parent.append(svg);
  return (points, now) => {
    const values = points.map(([, value]) => value);
    if (!values.length) return;
    const top = Math.max(1, ...values) * 1.06;
    const x = (t) => (120 * (1 - (now - t) / WINDOW_S)).toFixed(2);
    const y = (value) => (23.5 - (22.5 * value) / top).toFixed(2);
    const step = ([t, value], n) => (n ? `H${x(t)}V${y(value)}` : `M${x(t)},${y(value)}`);
    const path = `${points.map(step).join("")}H120`;
    line.setAttribute("d", path);
    area.setAttribute("d", `${path}V24H${x(points[0][0])}Z`);
    write(title, `Last ${WINDOW_S} s: ${size(Math.min(...values))} to ${size(Math.max(...values))}`);
  };
}

// The census of the last cell's end. It fills its track: tensors are often a small part of the RAM.
function holderRow(tracks, box) {
  let kinds = "";
  let draw = null;
  let age = null;
  let made = [];
  return (census, label, t) => {
    const found = (census.bars || []).find((each) => each.label.startsWith(`${label},`));
    const wanted = found ? found.segments.map((part) => part.hue).join() : "";
    if (wanted !== kinds) {
      made.forEach((node) => node.remove());
      kinds = wanted;
      draw = null;
      if (wanted) {
        const legend = add(box, "div", "nbl-legend");
        age = add(legend, "span", "nbl-note");
        draw = stack(tracks, legend, found, "nbl-holders");
        made = [legend, tracks.lastChild];
      }
    }
    if (!draw) return;
    const old = [ago(t - census.t), census.slow ? `a census takes ${census.cost_s.toFixed(1)} s` : ""];
    const words = `${size(sum(found))} in tensors`;
    write(age, [words, ...old.filter(Boolean)].join(", "));
    draw(found, sum(found) || 1, sum(found), words);
  };
}

// The rows of one device. Nothing is built again when the numbers change.
function device(parent, bar) {
  const box = add(parent, "div", "nbl-device");
  add(box, "div", "nbl-name", bar.label);
  const tracks = add(box, "div", "nbl-tracks");
  const head = add(box, "div", "nbl-total");
  const number = add(head, "b", "nbl-number");
  const total = add(head, "span", "nbl-of");
  const history = add(box, "div", "nbl-history");
  const spark = sparkline(history, bar.segments.length ? bar.segments[0].fill : "transparent");
  add(history, "span", "nbl-note", `${WINDOW_S} s`);
  const legend = add(box, "div", "nbl-legend");
  const draw = stack(tracks, legend, bar, "nbl-track");
  const highest = add(legend, "span", "nbl-part nbl-highest");
  const note = add(legend, "span", "nbl-note");
  const tick = add(tracks.firstChild, "i", "nbl-tick");
  const holders = holderRow(tracks, box);
  const known = bar.segments.length > 0;
  box.classList.toggle("nbl-unknown", !known);

  return (now, peak, points, t, census) => {
    const scale = full(now);
    write(number, known ? size(used(now)) : "unknown");
    write(total, known && now.total_bytes ? ` of ${size(now.total_bytes)}` : "");
    head.title = known ? exact(used(now)) + (now.total_bytes ? ` of ${exact(now.total_bytes)}` : "") : "";
    const words = known ? `${number.textContent}${total.textContent}, highest ${size(peak)}` : now.note;
    draw(now, scale, used(now), words);
    tick.style.left = `${Math.min(100, (100 * peak) / scale).toFixed(3)}%`;
    write(highest, known ? `highest ${size(peak)}` : "");
    highest.title = exact(peak);
    write(note, known && now.note && now.total_bytes ? `${size(now.total_bytes)}: ${now.note}` : now.note);
    spark(points, t);
    holders(census, now.label, t);
  };
}

function render({ model, el }) {
  const root = add(el, "div", "nbl-live");
  // While these bars are here, the picture kept for saved notebooks is hidden.
  const still = `.${model.get("still_class")}`;
  add(root, "style", "", `${still}, .jp-OutputArea-child:has(${still}) { display: none !important; }`);
  const head = add(root, "div", "nbl-head");
  add(head, "span", "nbl-title", "Memory");
  const state = add(head, "span", "nbl-state");
  state.setAttribute("role", "status");
  const close = add(head, "button", "nbl-close", "×");
  close.type = "button";
  close.title = "Close the live bars";
  close.setAttribute("aria-label", "Close the live memory bars");
  const problem = add(root, "div", "nbl-problem");
  problem.setAttribute("role", "alert");
  const body = add(root, "div", "nbl-devices");

  let rows = [];
  let layout = "";
  let points = model.get("history").slice();
  let arrived = performance.now();
  let gone = false;

  function draw() {
    const now = model.get("sample");
    if (!now.bars) return;
    const wanted = JSON.stringify(now.bars.map((bar) => [bar.label, bar.segments.map((part) => part.label)]));
    if (wanted !== layout) {
      layout = wanted;
      body.textContent = "";
      rows = now.bars.map((bar) => device(body, bar));
    }
    const last = points.length ? points[points.length - 1][0] : -Infinity;
    if (now.t > last && !now.error) points.push([now.t, now.bars.map(used)]);
    points = points.filter(([t]) => t > now.t - WINDOW_S);
    now.bars.forEach((bar, n) => {
      const own = points.map(([t, values]) => [t, values[n] || 0]);
      rows[n](bar, now.peaks[n], own, now.t, model.get("holders"));
    });
    write(problem, now.error ? `No reading: ${now.error}` : "");
  }

  function say(kind, text, title = "") {
    state.dataset.kind = kind;
    write(state, text);
    state.title = title;
    root.classList.toggle("nbl-dim", kind !== "live");
  }

  function check() {
    const { at = "unknown", period_s = 0, error } = model.get("sample");
    const silent_s = (performance.now() - arrived) / 1000;
    if (gone) {
      say("gone", `kernel gone, last reading ${at}`);
    } else if (silent_s > 3 * Math.max(1.1, period_s)) {
      const why = "The kernel sends nothing: it runs code that lets no other thread in, or it is gone.";
      say("paused", `paused, last reading ${at}`, why);
    } else if (error) {
      say("paused", "paused");
    } else {
      say("live", close.disabled ? "closes when the running cell ends" : "live");
    }
  }

  function onSample() {
    arrived = performance.now();
    gone = false;
    draw();
    check();
  }
  function onKernelGone() {
    gone = true;
    close.disabled = false;
    check();
  }
  close.addEventListener("click", () => {
    if (gone) {
      root.remove(); // nobody is left to ask; the picture is shown again
    } else {
      close.disabled = true;
      model.send({ kind: "close" });
      check();
    }
  });
  const events = [["change:sample", onSample], ["change:holders", draw], ["comm_live_update", onKernelGone]];
  events.forEach(([name, call]) => model.on(name, call));
  const timer = setInterval(check, 500);
  draw();
  check();
  return () => {
    clearInterval(timer);
    events.forEach(([name, call]) => model.off(name, call));
  };
}

export default { render };
