// Gradients step by step: one table row for each module or parameter, its history as a strip of
// shades, and one step chosen by the slider, the arrow keys or a click.
const ROW_BYTES = 31;
const AT = { norm: 0, max: 4, mean: 8, written: 12, weight: 16, update: 20 };
const FLAG = { gradient: 1, reached: 2, update: 4, cosine: 8, zeros: 128 };
const N_BLOCKS = 16;
const SVG = "http://www.w3.org/2000/svg";
const FIRST_ROWS = 16;
const STRIP = 18; // pixels
const AT_ONCE = 40; // rows
const ROW = 23; // pixels, until it is known
// Powers of two: the smallest number, the smallest with all digits, and where it overflows.
const FORMATS = [
  ["float16", -24, -14, 16],
  ["bfloat16", -133, -126, 128],
];
const COLUMNS = [
  ["norm", "norm", "Norm of the gradient as backward left it: unscaled, before clipping"],
  ["max", "max |g|", "Largest absolute value"],
  ["zeros", "zeros", "Share of elements that are exactly 0"],
  ["ratio", "update / weight", "Norm of what the step added over the norm of the weight"],
  ["cosine", "cosine", "Between this gradient and the one of the step before"],
];

function add(parent, tag, name, text = "") {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text) node.textContent = text;
  parent.append(node);
  return node;
}
function svg(parent, tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
  parent.append(node);
  return node;
}
function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value.replace("nan", "NaN");
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "−Inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e4 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  return text.replaceAll("-", "−").replace("e+", "e");
}
const percent = (share) =>
  share === null ? "–" : share > 0 && share < 0.001 ? "<0.1 %" : `${Number((100 * share).toPrecision(share < 0.1 ? 1 : 2))} %`;

function cut(name, most = 40) {
  if (name.length <= most) return name;
  const tail = Math.round((most - 1) * 0.6);
  return `${name.slice(0, most - 1 - tail)}…${name.slice(-tail)}`;
}

function half(view, at) {
  const bits = view.getUint16(at, true);
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const part = bits & 1023;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + part / 1024) : 2 ** -14 * (part / 1024));
}

// One run: where each step's rows lie, and what they say.
class Run {
  constructor(about, steps, viewOf) {
    this.about = about;
    this.steps = steps;
    this.n = steps.index ? steps.index.length : 0;
    this.places = (about.groups || []).map((group) => new Map(group.map((one, at) => [one, at])));
    this.viewOf = viewOf;
    this.starts = [];
    let at = 0;
    for (let s = 0; s < this.n; s += 1) {
      if (about.block && s % about.block === 0) at = 0;
      this.starts.push(at);
      at += ROW_BYTES * about.groups[steps.group[s]].length;
    }
    this.cache = new Map();
  }
  place(s, parameter) {
    const row = this.places[this.steps.group[s]].get(parameter);
    if (row === undefined) return null;
    const view = this.viewOf(this.about.block ? Math.floor(s / this.about.block) : 0);
    const at = this.starts[s] + ROW_BYTES * row;
    return view && at + ROW_BYTES <= view.byteLength ? [view, at] : null;
  }
  // What one parameter did in one step; null where it is no part of it.
  read(s, parameter) {
    const found = this.place(s, parameter);
    if (!found) return null;
    const [view, at] = found;
    const flags = view.getUint8(at + 30);
    const f = (name) => view.getFloat32(at + AT[name], true);
    const has = (flag) => (flags & flag) !== 0;
    return {
      reached: has(FLAG.reached),
      norm: has(FLAG.gradient) ? f("norm") : null,
      max: has(FLAG.gradient) ? f("max") : null,
      zeros: has(FLAG.zeros) ? half(view, at + 24) : null,
      cosine: has(FLAG.cosine) ? half(view, at + 26) : null,
      weight: f("weight"),
      update: has(FLAG.update) ? f("update") : null,
    };
  }
  // The norm of some parameters together in each step: null where there is none.
  norms(key, parameters) {
    if (!this.cache.has(key)) {
      const found = new Array(this.n);
      for (let s = 0; s < this.n; s += 1) {
        let sum = null;
        if (!this.steps.skipped[s]) {
          for (const one of parameters) {
            const place = this.place(s, one);
            if (place && place[0].getUint8(place[1] + 30) & FLAG.gradient) {
              sum = (sum || 0) + place[0].getFloat32(place[1], true) ** 2;
            }
          }
        }
        found[s] = sum === null ? null : Math.sqrt(sum);
      }
      this.cache.set(key, found);
    }
    return this.cache.get(key);
  }
  sum(s, parameters, sizes) {
    const rows = parameters.map((one) => this.read(s, one));
    const here = rows.filter((row) => row);
    if (!here.length) return { absent: true };
    const all = (name, rows_) => rows_.map((row) => row[name]).filter((value) => value !== null);
    const root = (values) => (values.length ? Math.sqrt(values.reduce((sum, v) => sum + v * v, 0)) : null);
    const updated = here.filter((row) => row.update !== null);
    const weight = root(all("weight", updated));
    let zeros = 0;
    let counted = 0;
    rows.forEach((row, n) => {
      if (row && row.zeros !== null) {
        zeros += row.zeros * sizes[parameters[n]];
        counted += sizes[parameters[n]];
      }
    });
    const tops = all("max", here);
    return {
      norm: root(all("norm", here)),
      max: tops.length ? (tops.some(Number.isNaN) ? NaN : Math.max(...tops)) : null,
      zeros: counted ? zeros / counted : null,
      ratio: updated.length && weight > 0 ? root(all("update", updated)) / weight : null,
      cosine: here.length === 1 ? here[0].cosine : null,
      reached: here.some((row) => row.reached),
    };
  }
}

const raised = (power) => String(power).replace(/./g, (one) => (one === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[one]));

// Histograms [first power, counts] of several parameters as one.
function addUp(some) {
  const first = Math.min(...some.map(([one]) => one));
  const end = Math.max(...some.map(([one, counts]) => one + counts.length));
  if (!some.length) return [0, []];
  const sum = new Array(end - first).fill(0);
  some.forEach(([one, counts]) => counts.forEach((n, k) => (sum[one - first + k] += n)));
  return [first, sum];
}

// Modules as a tree, single children joined to their parent.
function tree(names) {
  const top = { name: "", path: "", children: [], parameters: [] };
  names.forEach((name, n) => {
    let node = top;
    node.parameters.push(n);
    name.split(".").forEach((part, depth, parts) => {
      const path = parts.slice(0, depth + 1).join(".");
      let child = node.children.find((one) => one.path === path);
      if (!child) {
        child = { name: part, path, children: [], parameters: [], depth };
        node.children.push(child);
      }
      child.parameters.push(n);
      node = child;
    });
  });
  const join = (node) => {
    while (node.children.length === 1 && node.children[0].children.length) {
      const [only] = node.children;
      node.name = node.name ? `${node.name}.${only.name}` : only.name;
      node.path = only.path;
      node.children = only.children;
    }
    node.children.forEach(join);
  };
  top.children.forEach(join);
  return top;
}
// Open what leaves few enough rows to see at once.
function firstOpen(top) {
  const open = new Set();
  let layer = top.children;
  let rows = layer.length;
  while (layer.length) {
    const next = layer.filter((node) => node.children.length);
    const more = next.reduce((sum, node) => sum + node.children.length, 0);
    if (!next.length || rows + more > FIRST_ROWS) break;
    next.forEach((node) => open.add(node.path));
    rows += more;
    layer = next.flatMap((node) => node.children);
  }
  return open;
}

function render({ model, el }) {
  const root = add(el, "div", "nbs-root");
  root.tabIndex = 0;
  root.dataset.lmSuppressShortcuts = "true";
  root.setAttribute("aria-label", "Gradients step by step");
  // The report above keeps what it says and what to do; its tables and pictures are all in here.
  const still = `.${model.get("still_class")} > .nbi > :not(p, .nbi-advice)`;
  add(root, "style", "", `${still} { display: none !important; }`);
  const head = add(root, "div", "nbs-head");
  const title = add(head, "strong", "nbs-title", "Gradients");
  const state = add(head, "span", "nbs-state");
  const chips = add(root, "div", "nbs-chips");
  const why = add(root, "p", "nbs-why");
  why.setAttribute("role", "status");
  const bar = add(root, "div", "nbs-bar");
  const button = (name, text, label, go) => {
    const node = add(bar, "button", name, text);
    node.type = "button";
    node.setAttribute("aria-label", label);
    node.title = label;
    node.addEventListener("click", go);
    return node;
  };
  button("nbs-step", "‹", "Previous step", () => choose(at - 1));
  const slider = add(bar, "input", "nbs-slider");
  slider.type = "range";
  slider.min = 0;
  slider.setAttribute("aria-label", "Step");
  button("nbs-step", "›", "Next step", () => choose(at + 1));
  const said = add(bar, "span", "nbs-said");
  const facts = add(root, "div", "nbs-facts");
  const table = add(root, "table", "nbs-table");
  const headings = add(add(table, "thead"), "tr");
  const foot = add(root, "p", "nbs-note");
  const powers = add(root, "div", "nbs-powers");

  let run = new Run({ groups: [], names: [] }, {}, () => null);
  let earlier = null;
  let at = 0;
  let follows = true;
  let shape = "";
  let top = tree([]);
  let open = new Set();
  let sort = { column: "", down: true };
  let chosen = "";
  let spread = 200;
  let rows = []; // those that are built
  let chunks = [];
  let scale = [0, 1];

  const bytes = (name) => {
    const data = model.get(name);
    if (!data || !data.byteLength) return null;
    return data instanceof DataView ? data : new DataView(data.buffer || data);
  };

  function heading(column, text, label) {
    const cell = add(headings, "th", column === "name" ? "nbs-left" : "");
    const node = add(cell, "button", "nbs-sort", text);
    node.type = "button";
    node.title = label;
    node.addEventListener("click", () => {
      const same = sort.column === column;
      sort = same && !sort.down ? { column: "", down: true } : { column, down: !same };
      if (column === "name") sort = { column: "", down: true };
      layOut();
    });
    return [column, cell, node];
  }
  const heads = [
    heading("name", "parameter", "Module order"),
    ...COLUMNS.map(([column, text, label]) => heading(column, text, `${label}; click to sort`)),
  ];
  const last = add(headings, "th", "nbs-left nbs-history", "norm over steps");
  last.title = "Curve: this row on a logarithmic scale of its own; shade: the darker the larger, the same for all rows; click to go to a step";

  // The rows to show: folded modules and single parameters, in module order or sorted.
  function visible() {
    const found = [];
    const walk = (node, depth) => {
      const folds = node.children.length > 0;
      found.push({ node, depth, folds });
      if (folds && open.has(node.path)) node.children.forEach((child) => walk(child, depth + 1));
    };
    top.children.forEach((node) => walk(node, 0));
    if (!sort.column) return found;
    const value = ({ node }) => {
      const figure = run.sum(at, node.parameters, run.about.sizes)[sort.column];
      if (figure === null || figure === undefined) return -Infinity;
      return Number.isNaN(figure) ? Infinity : figure;
    };
    const leaves = found.filter(({ node, folds }) => !(folds && open.has(node.path)));
    const worth = new Map(leaves.map((one) => [one, value(one)]));
    const sign = sort.down ? -1 : 1;
    return leaves.sort((a, b) => sign * (worth.get(a) - worth.get(b)) || 0);
  }

  // A large model has hundreds of rows: those out of sight are a gap of their height.
  const onScreen = new IntersectionObserver(
    (entries) => entries.forEach(({ target, isIntersecting }) => (isIntersecting ? build : drop)(target.chunk)),
    { rootMargin: "400px 0px" },
  );
  function build(chunk) {
    if (chunk.rows) return;
    chunk.body.textContent = "";
    chunk.rows = chunk.specs.map(({ node, depth, folds }) => makeRow(chunk.body, node, depth, folds));
    rows = chunks.flatMap((one) => one.rows || []);
    if (run.n) chunk.rows.forEach(fill);
    chunk.rows.forEach(drawStrip);
  }
  function drop(chunk) {
    if (!chunk.rows || chunk === chunks[0]) return;
    const height = chunk.body.getBoundingClientRect().height;
    chunk.rows = null;
    rows = chunks.flatMap((one) => one.rows || []);
    gap(chunk, height);
  }
  function gap(chunk, height) {
    chunk.body.textContent = "";
    add(chunk.body, "tr", "nbs-gap").style.height = `${height}px`;
  }
  // Give the line of a row, built if it was out of sight.
  function lineOf(path) {
    const chunk = chunks.find((one) => one.specs.some(({ node }) => node.path === path));
    if (chunk) build(chunk);
    return rows.find(({ node }) => node.path === path)?.line;
  }

  function layOut() {
    onScreen.disconnect();
    chunks.forEach(({ body }) => body.remove());
    heads.forEach(([column, cell]) => {
      const on = sort.column === column;
      cell.setAttribute("aria-sort", on ? (sort.down ? "descending" : "ascending") : "none");
    });
    const specs = visible();
    chunks = [];
    rows = [];
    for (let n = 0; n < specs.length; n += AT_ONCE) {
      const chunk = { body: add(table, "tbody"), specs: specs.slice(n, n + AT_ONCE), rows: null };
      chunk.body.chunk = chunk;
      chunks.push(chunk);
      if (n) gap(chunk, ROW * chunk.specs.length);
      else build(chunk);
    }
    chunks.forEach(({ body }) => onScreen.observe(body));
    drawStep();
    moveCursor();
  }

  function makeRow(body, node, depth, folds) {
    const line = add(body, "tr", "nbs-row");
    line.dataset.path = node.path;
    const name = add(line, "td", "nbs-name");
    const flat = Boolean(sort.column);
    name.style.paddingLeft = `${flat ? 0 : 14 * depth}px`;
    const fold = add(name, "button", folds ? "nbs-fold" : "nbs-leaf", folds && !flat ? (open.has(node.path) ? "▾" : "▸") : "");
    fold.type = "button";
    if (folds && !flat) {
      fold.setAttribute("aria-expanded", String(open.has(node.path)));
      fold.setAttribute("aria-label", `${open.has(node.path) ? "Fold" : "Unfold"} ${node.path}`);
      fold.addEventListener("click", () => {
        if (!open.delete(node.path)) open.add(node.path);
        layOut();
        lineOf(node.path)?.querySelector(".nbs-fold").focus();
      });
    } else {
      fold.disabled = true;
      fold.setAttribute("aria-hidden", "true");
    }
    const pick = add(name, "button", "nbs-pick");
    pick.type = "button";
    pick.title = node.path;
    add(pick, "span", "", cut(flat ? node.path : node.name));
    if (folds) add(pick, "span", "nbs-count", ` ${node.parameters.length}`);
    pick.addEventListener("click", () => {
      chosen = chosen === node.path ? "" : node.path;
      layOut();
    });
    const cells = COLUMNS.map(([column]) => {
      const cell = add(line, "td", "nbs-num");
      const track = column === "norm" ? add(cell, "span", "nbs-share") : null;
      const inner = track ? add(track, "span", "") : null;
      return { column, cell, inner, text: add(cell, "span", "nbs-figure") };
    });
    const strip = add(add(line, "td", "nbs-history"), "canvas", "nbs-strip");
    strip.height = STRIP;
    strip.addEventListener("click", (event) => {
      const box = strip.getBoundingClientRect();
      choose(Math.floor(((event.clientX - box.left) / box.width) * run.n));
    });
    const row = { node, line, cells, strip, chart: null };
    if (chosen === node.path) {
      line.classList.add("nbs-chosen");
      row.chart = add(add(add(body, "tr", "nbs-detail"), "td", ""), "div", "nbs-chart");
      row.chart.parentNode.colSpan = COLUMNS.length + 2;
    }
    return row;
  }

  // One scale for all rows, so that layers compare.
  function findScale() {
    const logs = [];
    const every = Math.max(1, Math.floor((run.n * run.about.names.length) / 20000));
    run.about.names.forEach((_, n) => {
      for (let s = n % every; s < run.n; s += every) {
        const found = run.steps.skipped[s] ? null : run.place(s, n);
        const value = found ? found[0].getFloat32(found[1], true) : 0;
        if (value > 0 && Number.isFinite(value)) logs.push(Math.log10(value));
      }
    });
    logs.sort((a, b) => a - b);
    const part = (share_) => logs[Math.min(logs.length - 1, Math.floor(share_ * logs.length))];
    // Without the ends: one spike would leave all the others the same shade.
    scale = logs.length ? [part(0.01), Math.max(part(0.99), part(0.01) + 0.5)] : [0, 1];
    foot.textContent = logs.length
      ? `Curves: each row on a scale of its own. Shades: from ${number(10 ** scale[0])} or less to ${number(10 ** scale[1])} or more, logarithmic, the same for all rows.`
      : "";
  }
  const share = (value) => Math.min(1, Math.max(0, (Math.log10(value) - scale[0]) / (scale[1] - scale[0])));

  function drawStrips() {
    rows.forEach(drawStrip);
    moveCursor();
  }
  // The history of a row: its shade compares rows, its curve has a scale of its own.
  function drawStrip({ node, strip }) {
    const style = getComputedStyle(root);
    const color = (name, other) => style.getPropertyValue(name).trim() || other;
    const ink = color("--nbs-accent-fill", "#0072b2");
    const alert = color("--nbs-alert-fill", "#c62828");
    const width = Math.max(40, Math.round(strip.getBoundingClientRect().width) || 200);
    strip.width = width;
    const context = strip.getContext("2d");
    const tops = binned(run.norms(node.path, node.parameters), width);
    const logs = tops.filter((one) => one > 0 && Number.isFinite(one)).map(Math.log10).sort((a, b) => a - b);
    const part = (share_) => logs[Math.floor(share_ * (logs.length - 1))];
    const low = part(0.02); // without the ends: one spike would flatten all the rest
    const range = Math.max(0.3, part(0.98) - low);
    tops.forEach((most, x) => {
      if (most === null) return;
      context.globalAlpha = Number.isNaN(most) ? 1 : 0.05 + 0.5 * (most > 0 ? share(most) : 0);
      context.fillStyle = Number.isNaN(most) ? alert : ink;
      context.fillRect(x, 0, 1, STRIP);
    });
    context.globalAlpha = 1;
    context.strokeStyle = color("--nbs-ink-fill", style.color);
    context.lineWidth = 1.2;
    context.beginPath();
    let pen = false;
    tops.forEach((most, x) => {
      const good = most > 0 && Number.isFinite(most);
      const tall = good ? Math.min(1, Math.max(0, (Math.log10(most) - low) / range)) : 0;
      const y = STRIP - 2 - (STRIP - 4) * tall;
      if (good && pen) context.lineTo(x + 0.5, y);
      else if (good) context.moveTo(x + 0.5, y);
      pen = good || (pen && most === null && run.n < width);
    });
    context.stroke();
  }
  // The largest of each column of so many; NaN where one is not finite, null where there is none.
  function binned(norms, width) {
    const tops = new Array(run.n ? width : 0).fill(null);
    for (let x = 0; x < tops.length; x += 1) {
      const from = Math.floor((x * run.n) / width);
      const to = Math.max(from + 1, Math.floor(((x + 1) * run.n) / width));
      for (let s = from; s < to; s += 1) {
        const value = norms[s];
        if (value !== null && !Number.isNaN(tops[x])) {
          tops[x] = !Number.isFinite(value) ? NaN : tops[x] === null ? value : Math.max(tops[x], value);
        }
      }
    }
    return tops;
  }
  function moveCursor() {
    table.style.setProperty("--nbs-at", `${run.n ? ((at + 0.5) / run.n) * 100 : 0}%`);
  }

  function drawStep() {
    if (!run.n) {
      said.textContent = run.about.ended ? "no steps" : "waiting for the first step…";
      facts.textContent = "";
      return;
    }
    slider.max = run.n - 1;
    slider.value = at;
    const of = run.steps.n > run.n ? ` of ${run.steps.n}, ${run.n} kept` : ` of ${run.steps.n}`;
    said.textContent = `step ${run.steps.index[at]}${of}`;
    slider.setAttribute("aria-valuetext", said.textContent);
    facts.textContent = "";
    const fact = (name, value) => {
      const part = add(facts, "span", "nbs-fact", `${name} `);
      add(part, "b", typeof value === "string" && /NaN|Inf/.test(value) ? "nbs-bad" : "", value);
    };
    fact("loss", number(run.steps.loss[at]));
    fact("norm", number(run.steps.norm[at]));
    if (run.steps.clipped[at]) fact(run.steps.clipped[at] === "changed" ? "changed to" : "clipped to", `${number(run.steps.clip[at])} of it`);
    if (run.steps.rate[at] !== null) fact("learning rate", number(run.steps.rate[at]));
    if (run.steps.scale[at] !== null) fact("loss scale", number(run.steps.scale[at]));
    if (run.steps.skipped[at]) fact("", "skipped by the scaler");
    if (earlier) {
      const then = earlier.steps.index.indexOf(run.steps.index[at]);
      if (then >= 0) fact("before: loss", number(earlier.steps.loss[then]));
      if (then >= 0) fact("norm", number(earlier.steps.norm[then]));
    }
    rows.forEach(fill);
    moveCursor();
    drawPowers();
  }

  // How often each power of two occurs in the gradients, over what float16 and bfloat16 hold.
  function drawPowers() {
    const all = model.get("exponents") || [];
    powers.textContent = "";
    if (!all.length) return;
    const step = run.steps.index[at];
    const near = all.reduce((best, one) => (Math.abs(one.step - step) < Math.abs(best.step - step) ? one : best));
    const row = rows.find((one) => one.node.path === chosen);
    const [first, counts] = row && Object.keys(near.own).length ? addUp(row.node.parameters.map((n) => near.own[n]).filter(Boolean)) : near.all;
    const head = add(powers, "div", "nbs-chart-head");
    if (row && Object.keys(near.own).length) add(head, "b", "nbs-mono", row.node.path);
    add(head, "span", "", `gradients as written in step ${near.step}, by power of two`);
    const total = counts.reduce((sum, n) => sum + n, 0);
    if (!total) {
      add(powers, "p", "nbs-note", "They are all 0.");
      return;
    }
    const lost = counts.reduce((sum, n, k) => sum + (first + k < -24 ? n : 0), 0) / total;
    const low = Math.min(first, -26) - 1;
    const high = Math.max(first + counts.length, 17) + 1;
    const W = Math.max(280, Math.min(760, powers.clientWidth || 760));
    const [H, L, R] = [70, 62, 8];
    const picture = svg(powers, "svg", { width: W, height: H + 62, viewBox: `0 0 ${W} ${H + 62}`, class: "nbs-plot", role: "img" });
    svg(picture, "title", {}).textContent = `Exponents from 2^${first} to 2^${first + counts.length - 1}; ${percent(lost)} below what float16 holds`;
    const x = (power) => L + ((W - L - R) * (power - low)) / (high - low);
    const most = Math.max(...counts);
    counts.forEach((n, k) => {
      if (!n) return;
      const tall = Math.max(1, (H - 4) * (n / most));
      svg(picture, "rect", { x: x(first + k) + 0.5, width: Math.max(1, x(1) - x(0) - 1), y: H - tall, height: tall, class: first + k < -24 ? "nbs-nan" : "nbs-column" });
    });
    svg(picture, "line", { x1: L, x2: W - R, y1: H, y2: H, class: "nbs-grid" });
    const every = Math.max(4, Math.ceil((high - low) / 40) * 4);
    for (let power = Math.ceil(low / every) * every; power <= high; power += every) {
      svg(picture, "text", { x: x(power), y: H + 14, class: "nbs-tick", "text-anchor": "middle" }).textContent = `2${raised(power)}`;
    }
    FORMATS.forEach(([name, least, normal, end], n) => {
      const y = H + 28 + 18 * n;
      svg(picture, "text", { x: L - 8, y: y + 4, class: "nbs-tick", "text-anchor": "end" }).textContent = name;
      const part = (from, to, kind) => {
        const [a, b] = [Math.max(from, low), Math.min(to, high)];
        if (b > a) svg(picture, "rect", { x: x(a), width: x(b) - x(a), y: y - 3, height: 7, class: kind });
      };
      part(least, normal, "nbs-format nbs-faint");
      part(normal, end, "nbs-format");
    });
    add(powers, "p", "nbs-note", `${percent(lost)} of the values that are not 0 would be 0 in float16 without a loss scale. Bars below: what each format holds, faint where it has fewer digits.`);
  }

  function fill({ node, line, cells, chart }) {
    const figures = run.sum(at, node.parameters, run.about.sizes);
    const bad = figures.norm !== null && figures.norm !== undefined && !Number.isFinite(figures.norm);
    const ill = run.about.findings.find((one) => node.parameters.includes(run.about.names.indexOf(one.parameter)));
    line.classList.toggle("nbs-ill", Boolean(ill));
    line.classList.toggle("nbs-absent", Boolean(figures.absent));
    for (const { column, cell, inner, text } of cells) {
      const value = figures[column];
      let words = column === "zeros" ? percent(value ?? null) : number(value);
      if (column === "cosine" && typeof value === "number") words = number(Math.round(value * 100) / 100);
      if (column === "norm" && !figures.absent && !figures.reached) words = value === null ? "none" : "not reached";
      text.textContent = words;
      cell.classList.toggle("nbs-bad", column === "norm" && bad);
      if (inner) inner.style.width = `${value > 0 && Number.isFinite(value) ? Math.max(3, 100 * share(value)) : 0}%`;
      if (inner) cell.title = typeof value === "number" ? String(value) : "";
    }
    if (chart) drawChart(chart, node);
  }

  // The history of one row, on the scale of what is in the window.
  function drawChart(chart, node) {
    chart.textContent = "";
    const top_ = add(chart, "div", "nbs-chart-head");
    add(top_, "b", "nbs-mono", node.path);
    add(top_, "span", "", "gradient norm, ");
    [50, 200, 0].forEach((width) => {
      const pick = add(top_, "button", `nbs-window${width === spread ? " nbs-on" : ""}`, width ? `last ${width}` : "all steps");
      pick.type = "button";
      pick.setAttribute("aria-pressed", String(width === spread));
      pick.addEventListener("click", () => {
        spread = width;
        drawChart(chart, node);
      });
    });
    const norms = run.norms(node.path, node.parameters);
    const end = spread ? Math.min(run.n, Math.max(at + 1, spread)) : run.n;
    const start = spread ? Math.max(0, end - spread) : 0;
    const index = run.steps.index;
    const before = earlier ? beforeNorms(node) : new Map();
    const good = (value) => value > 0 && Number.isFinite(value);
    const inside = [];
    for (let s = start; s < end; s += 1) {
      if (good(norms[s])) inside.push(norms[s]);
      if (good(before.get(index[s]))) inside.push(before.get(index[s]));
    }
    if (!inside.length) {
      add(chart, "p", "nbs-note", "No gradient in this window.");
      return;
    }
    let [low, high] = [Math.log10(Math.min(...inside)), Math.log10(Math.max(...inside))];
    const room = Math.max(0.15, 0.08 * (high - low));
    [low, high] = [low - room, high + room];
    const W = Math.max(280, Math.min(760, chart.clientWidth || 760)); // one unit is one pixel
    const [H, L, B] = [130, 62, 18];
    const picture = svg(chart, "svg", { width: W, height: H + B, viewBox: `0 0 ${W} ${H + B}`, class: "nbs-plot", role: "img" });
    svg(picture, "title", {}).textContent = `${node.path}: norm from ${number(Math.min(...inside))} to ${number(Math.max(...inside))}`;
    const x = (s) => L + ((W - L - 8) * (s - start)) / Math.max(1, end - 1 - start);
    const y = (value) => H - (H - 8) * ((Math.log10(value) - low) / (high - low));
    ticks(low, high).forEach((tick) => {
      svg(picture, "line", { x1: L, x2: W - 8, y1: y(tick), y2: y(tick), class: "nbs-grid" });
      svg(picture, "text", { x: L - 8, y: y(tick) + 4, class: "nbs-tick", "text-anchor": "end" }).textContent = number(tick);
    });
    const path = (values) => {
      let d = "";
      let pen = false;
      for (let s = start; s < end; s += 1) {
        const value = values(s);
        if (good(value)) {
          d += `${pen ? "L" : "M"}${x(s).toFixed(1)},${y(value).toFixed(1)}`;
          pen = true;
        } else if (value !== null && value !== undefined) pen = false;
      }
      return d;
    };
    if (earlier) svg(picture, "path", { d: path((s) => before.get(index[s])), class: "nbs-before" });
    svg(picture, "path", { d: path((s) => norms[s]), class: "nbs-line" });
    for (let s = start; s < end; s += 1) {
      if (norms[s] !== null && !Number.isFinite(norms[s])) svg(picture, "rect", { x: x(s) - 1.5, y: 4, width: 3, height: H - 4, class: "nbs-nan" });
    }
    if (at >= start && at < end) {
      svg(picture, "line", { x1: x(at), x2: x(at), y1: 4, y2: H, class: "nbs-now" });
      if (good(norms[at])) svg(picture, "circle", { cx: x(at), cy: y(norms[at]), r: 3.5, class: "nbs-dot" });
    }
    svg(picture, "text", { x: L, y: H + 14, class: "nbs-tick" }).textContent = `step ${index[start]}`;
    svg(picture, "text", { x: W - 8, y: H + 14, class: "nbs-tick", "text-anchor": "end" }).textContent = `step ${index[end - 1]}`;
    if (earlier) add(chart, "p", "nbs-note", "Dashed: the earlier run.");
  }
  function beforeNorms(node) {
    const names = new Map(earlier.about.names.map((name, n) => [name, n]));
    const same = node.parameters.map((n) => names.get(run.about.names[n])).filter((n) => n !== undefined);
    const norms = same.length ? earlier.norms(node.path, same) : [];
    return new Map(norms.map((value, s) => [earlier.steps.index[s], value]));
  }
  function ticks(low, high) {
    const whole = [];
    for (let e = Math.ceil(low); e <= Math.floor(high); e += 1) whole.push(10 ** e);
    if (whole.length >= 2) return whole.filter((_, n) => n % Math.ceil(whole.length / 4) === 0);
    return [10 ** (low + 0.12 * (high - low)), 10 ** (low + 0.88 * (high - low))].map((v) => Number(v.toPrecision(2)));
  }

  function choose(step) {
    if (!run.n) return;
    at = Math.min(run.n - 1, Math.max(0, step));
    follows = at === run.n - 1 && !run.about.ended;
    if (sort.column) layOut();
    else drawStep();
  }

  function drawChips() {
    const { findings = [], ended } = run.about;
    title.textContent = "Gradients";
    state.dataset.kind = ended ? "done" : "live";
    state.textContent = ended ? (findings.length ? "" : run.n ? "no problem found" : "") : "live";
    chips.textContent = "";
    findings.forEach((one) => {
      const chip = add(chips, "button", "nbs-chip");
      chip.type = "button";
      add(chip, "b", "", one.kind === "nan" ? "NaN or Inf" : one.kind.replace("_", " "));
      add(chip, "span", "nbs-mono", one.parameter);
      add(chip, "span", "", `step ${one.step}`);
      chip.title = `Go to step ${one.step}`;
      chip.addEventListener("click", () => jump(one));
    });
  }
  function jump(finding) {
    const n = run.about.names.indexOf(finding.parameter);
    const parts = finding.parameter.split(".");
    parts.forEach((_, depth) => open.add(parts.slice(0, depth).join(".")));
    const walk = (node) => {
      if (node.children.length && node.parameters.includes(n)) open.add(node.path);
      node.children.forEach(walk);
    };
    if (n >= 0) walk(top);
    if (n >= 0) chosen = finding.parameter;
    const near = run.steps.index.findIndex((index) => index >= finding.step);
    at = near < 0 ? run.n - 1 : near;
    follows = false;
    sort = { column: "", down: true };
    layOut();
    why.textContent = "";
    if (finding.parameter) add(why, "code", "", finding.parameter);
    why.append(`${finding.parameter ? " " : ""}${finding.says}: ${finding.why}`);
    if (finding.mend) add(why, "code", "nbs-mend", finding.mend);
    if (finding.parameter) lineOf(finding.parameter)?.scrollIntoView({ block: "nearest" });
  }

  let waiting = 0;
  function refresh() {
    waiting = 0;
    const about = model.get("about");
    const steps = model.get("steps");
    if (!about.names || !steps.index) return;
    const kept = run.n ? run.steps.index[at] : 0;
    run = new Run(about, steps, (number_) => bytes(`block_${number_}`));
    const then = model.get("earlier");
    if (then.names && !earlier) earlier = new Run(then, then, () => bytes("earlier_rows"));
    const wanted = about.names.join("\n");
    if (wanted !== shape) {
      shape = wanted;
      top = tree(about.names);
      open = firstOpen(top);
    }
    const same = steps.index.findIndex((index) => index >= kept);
    at = follows || same < 0 ? Math.max(0, run.n - 1) : same;
    drawChips();
    findScale();
    layOut();
  }
  function soon() {
    if (!waiting) waiting = requestAnimationFrame(refresh);
  }

  slider.addEventListener("input", () => choose(Number(slider.value)));
  root.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 10 : 1;
    const to = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: run.n - 1, PageUp: at - 50, PageDown: at + 50 }[event.key];
    event.stopPropagation(); // else JupyterLab takes keys as commands to the cell
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
  });
  let width = 0;
  const resized = new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    drawStep();
    drawStrips();
  });
  resized.observe(root);
  const themed = new MutationObserver(drawStrips);
  themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  const names = ["about", "steps", "exponents", "earlier", "earlier_rows", ...Array.from({ length: N_BLOCKS }, (_, n) => `block_${n}`)];
  names.forEach((name) => model.on(`change:${name}`, soon));
  refresh();
  return () => {
    resized.disconnect();
    onScreen.disconnect();
    themed.disconnect();
    if (waiting) cancelAnimationFrame(waiting);
    names.forEach((name) => model.off(`change:${name}`, soon));
  };
}

export default { render };
