// Live memory bars. The kernel sends `sample` a few times a second; this file only draws.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const WINDOW_S = 60;

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
const share = (bytes, bar) => `${Math.min(100, (100 * bytes) / full(bar)).toFixed(3)}%`;

function add(parent, tag, name, text = "") {
  const node = document.createElement(tag);
  node.className = name;
  node.textContent = text;
  parent.append(node);
  return node;
}

function paint(node, part, first) {
  const grey = /^#(..)\1\1$/i.test(part.fill);
  node.style.setProperty("--nbi-fill", first && grey ? "var(--nbi-accent)" : part.fill);
  node.classList.toggle("nbi-hatched", part.hatched);
}

// One part of a legend: swatch, words, number.
function legendPart(parent, part, first) {
  const item = add(parent, "span", "nbi-part");
  paint(add(item, "i", "nbi-swatch"), part, first);
  item.append(`${part.label} `);
  const number = add(item, "b", "nbi-number");
  return (bytes) => {
    number.textContent = size(bytes);
    item.title = exact(bytes);
  };
}

function track(parent, bar, name, accent) {
  const node = add(parent, "div", name);
  node.setAttribute("role", "meter");
  node.setAttribute("aria-valuemin", "0");
  const parts = bar.segments.map((part, n) => {
    const piece = add(node, "i", "nbi-piece");
    paint(piece, part, accent && n === 0);
    return piece;
  });
  return (now, words) => {
    now.segments.forEach((part, n) => {
      parts[n].style.width = share(part.size_bytes, now);
      parts[n].title = `${part.label}: ${exact(part.size_bytes)}`;
    });
    node.setAttribute("aria-label", `${now.label} memory`);
    node.setAttribute("aria-valuemax", String(full(now)));
    node.setAttribute("aria-valuenow", String(words.now));
    node.setAttribute("aria-valuetext", words.text);
    return node;
  };
}

const SVG = "http://www.w3.org/2000/svg";

function sparkline(parent) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "nbi-spark");
  svg.setAttribute("viewBox", "0 0 120 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const title = document.createElementNS(SVG, "title");
  const area = document.createElementNS(SVG, "path");
  const line = document.createElementNS(SVG, "path");
  area.setAttribute("class", "nbi-area");
  line.setAttribute("class", "nbi-line");
  svg.append(title, area, line);
  parent.append(svg);
  return (points, now) => {
    const values = points.map(([, value]) => value);
    const top = Math.max(1, ...values) * 1.08;
    const x = (t) => (120 * (1 - (now - t) / WINDOW_S)).toFixed(2);
    const y = (value) => (23.5 - (22.5 * value) / top).toFixed(2);
    const path = points.map(([t, value], n) => `${n ? `H${x(t)}V` : `M${x(t)},`}${y(value)}`).join("");
    line.setAttribute("d", points.length ? `${path}H120` : "");
    area.setAttribute("d", points.length ? `${path}H120V24H${x(points[0][0])}Z` : "");
    const range = values.length ? `${size(Math.min(...values))} to ${size(Math.max(...values))}` : "none";
    title.textContent = `last ${WINDOW_S} s: ${range}`;
  };
}

// The rows of one device. `update` is cheap: nothing is built again.
function device(parent, bar) {
  const box = add(parent, "div", "nbi-device");
  add(box, "div", "nbi-name", bar.label);
  const head = add(box, "div", "nbi-total");
  const number = add(head, "b", "nbi-number");
  const total = add(head, "span", "nbi-of");
  const tracks = add(box, "div", "nbi-tracks");
  const draw = track(tracks, bar, "nbi-track", true);
  const spark = sparkline(add(box, "div", "nbi-history"));
  const legend = add(box, "div", "nbi-legend");
  const numbers = bar.segments.map((part, n) => legendPart(legend, part, n === 0));
  const peakText = add(legend, "span", "nbi-part nbi-peak-text");
  const note = add(legend, "span", "nbi-note");
  let tick = null;
  let shown = "";

  function update(now, peak, points, t) {
    number.textContent = size(used(now));
    total.textContent = now.total_bytes ? ` of ${size(now.total_bytes)}` : "";
    head.title = now.total_bytes ? `${exact(used(now))} of ${exact(now.total_bytes)}` : exact(used(now));
    const text = `${size(used(now))}${total.textContent}, highest ${size(peak)}`;
    const node = draw(now, { now: used(now), text });
    tick = tick || add(node, "i", "nbi-peak");
    tick.style.left = share(peak, now);
    now.segments.forEach((part, n) => numbers[n](part.size_bytes));
    peakText.textContent = now.segments.length ? `highest ${size(peak)}` : "";
    note.textContent = now.segments.length && now.note ? `of ${now.note.replace(/^of /, "")}` : now.note;
    spark(points, t);
  }

  // The census of the last cell's end, on the same scale as the track above it.
  function holders(census, t) {
    const found = (census?.bars || []).find((each) => each.label.startsWith(`${bar.label},`));
    const key = JSON.stringify(found?.segments.map((part) => part.hue) || []);
    if (key !== shown) {
      box.querySelectorAll(".nbi-holder-track, .nbi-holder-legend").forEach((old) => old.remove());
      shown = key;
      box.redraw = null;
      if (found?.segments.length) {
        const drawHolders = track(tracks, found, "nbi-holder-track", false);
        const row = add(box, "div", "nbi-legend nbi-holder-legend");
        const age = add(row, "span", "nbi-note");
        const parts = found.segments.map((part) => legendPart(row, part, false));
        box.redraw = (now, words) => {
          const scaled = { ...now, total_bytes: Math.max(box.scale, sum(now)) };
          drawHolders(scaled, { now: sum(now), text: `${size(sum(now))} in tensors` });
          now.segments.forEach((part, n) => parts[n](part.size_bytes));
          age.textContent = words;
        };
      }
    }
    if (!box.redraw || !found) return;
    const old = Math.max(0, t - census.t);
    const when = old < 3 ? "" : old < 90 ? `, ${Math.round(old)} s ago` : `, ${Math.round(old / 60)} min ago`;
    const slow = census.slow ? ` (a census takes ${census.cost_s.toFixed(1)} s here)` : "";
    box.redraw(found, `held by${when}${slow}`);
  }
  return { update, holders, scale: (bytes) => (box.scale = bytes) };
}

function render({ model, el }) {
  const root = add(el, "div", "nbi-live");
  // While these bars are here, the picture kept for saved notebooks is hidden.
  const hide = add(root, "style", "");
  const still = `.${model.get("still_class")}`;
  hide.textContent = `${still}, .jp-OutputArea-child:has(${still}) { display: none !important; }`;

  const head = add(root, "div", "nbi-head");
  add(head, "span", "nbi-title", "Memory");
  const state = add(head, "span", "nbi-state");
  state.setAttribute("role", "status");
  const close = add(head, "button", "nbi-close", "×");
  close.type = "button";
  close.title = "Close the live bars";
  close.setAttribute("aria-label", "Close the live memory bars");
  const problem = add(root, "div", "nbi-problem");
  const body = add(root, "div", "nbi-devices");

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
    const last = points.length ? points[points.length - 1][0] : -1;
    if (now.t > last && !now.error) points.push([now.t, now.bars.map(used)]);
    points = points.filter(([t]) => t > now.t - WINDOW_S);
    now.bars.forEach((bar, n) => {
      const own = points.map(([t, values]) => [t, values[n] || 0]);
      rows[n].update(bar, now.peaks[n], own, now.t);
      rows[n].scale(full(bar));
      rows[n].holders(model.get("holders"), now.t);
    });
    problem.textContent = now.error ? `No reading: ${now.error}` : "";
  }

  function say(kind, text, title = "") {
    if (state.dataset.kind === kind && state.textContent === text) return;
    state.dataset.kind = kind;
    state.textContent = text;
    state.title = title;
  }

  function check() {
    const silent_s = (performance.now() - arrived) / 1000;
    const now = model.get("sample");
    if (gone) {
      say("gone", `kernel gone, last reading ${now.at || "unknown"}`);
    } else if (silent_s > 3 * Math.max(1.1, now.period_s || 0)) {
      say(
        "paused",
        `paused, last reading ${now.at || "unknown"}`,
        "The kernel sends nothing: it runs code that lets no thread in, or it is gone.",
      );
    } else {
      say("live", close.disabled ? "closes when the running cell ends" : "live");
    }
    root.classList.toggle("nbi-dim", state.dataset.kind !== "live" || Boolean(now.error));
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
      root.remove(); // the picture is shown again
      return;
    }
    close.disabled = true;
    model.send({ kind: "close" });
    check();
  });
  model.on("change:sample", onSample);
  model.on("change:holders", draw);
  model.on("comm_live_update", onKernelGone);
  const timer = setInterval(check, 500);
  draw();
  check();
  return () => {
    clearInterval(timer);
    model.off("change:sample", onSample);
    model.off("change:holders", draw);
    model.off("comm_live_update", onKernelGone);
  };
}

export default { render };
